// Counts tokens and time for one answer. The server's own count, when it comes, replaces the count of pieces.

export class Speed {
  constructor() {
    this.sent = performance.now();
    this.first = null;
    this.last = null;
    this.pieces = 0;
    this.usage = null;
    this.progress = null; // how far a slow level is, in the server's words
  }

  piece() {
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
  }

  toString() {
    if (this.progress) return `Computing ${this.progress}`;
    if (this.first === null) return "Waiting for the first token…";
    const tokens = this.usage?.completion_tokens ?? this.pieces;
    const about = this.usage ? "" : "about ";
    const parts = [`${about}${tokens} ${tokens === 1 ? "token" : "tokens"}`];
    const seconds = (this.last - this.first) / 1000;
    if (tokens > 1 && seconds > 0.1) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    parts.push(`first after ${Math.round(this.first - this.sent)} ms`);
    if (this.usage) parts.push(`prompt ${this.usage.prompt_tokens}`);
    return parts.join(" · ");
  }
}
