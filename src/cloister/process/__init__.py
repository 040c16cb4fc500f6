"""What every process is made of: started, hardened, spoken to, sealed and ended. It knows no models, prompts or
levels."""
