"""What every process is made of: started, hardened, spoken to, sealed, ended. No models, prompts or levels."""
