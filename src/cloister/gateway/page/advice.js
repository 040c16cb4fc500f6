// Says what to do about an error. Knows the server's codes; the message itself is the server's own.

/** {advice, action}: `action` is "settings", "retry", "new-chat" or null. */
export function adviceFor(error) {
  if (error.status === 401 || error.status === 403) {
    return { advice: "Enter a key this server knows under Settings, then send again: your message is in the box below.", action: "settings" };
  }
  if (error.code === "vault_lost") {
    return { advice: "The vault that held your message ended. Your message is gone with it; send it again.", action: "retry" };
  }
  if (error.code === "insufficient_quota") {
    return { advice: "Your message is in the box below: ask for less under Settings, or send it again later.", action: null };
  }
  if (error.status === 429 || error.status === 503) {
    const state = error.status === 429 ? "busy" : "not ready";
    const wait = error.retryAfter ? `about ${error.retryAfter} s` : "a moment";
    return { advice: `The server is ${state}. Wait ${wait}, then try again.`, action: "retry" };
  }
  if (error.code === "context_length_exceeded") {
    return { advice: "Start a new chat, write less, or ask for a shorter answer under Settings.", action: "new-chat" };
  }
  if (error.code === "protection_unavailable") {
    return { advice: "Choose a level of protection this server offers.", action: null };
  }
  if (error.code === "unreachable") {
    return { advice: "See that “cloister serve” is running and that you are connected, then try again.", action: "retry" };
  }
  if (error.status >= 400 && error.status < 500) {
    return { advice: "Your message is in the box below: change it, then send again.", action: null };
  }
  return { advice: "Try again; if it happens again, look at the server’s log.", action: "retry" };
}
