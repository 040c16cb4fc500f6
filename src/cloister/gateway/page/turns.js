// Draws the turns of a conversation. The server and the provider's view are elsewhere.

import { element } from "./dom.js";
import { codeFigure, renderMarkdown } from "./markdown.js";

export function questionTurn(text) {
  return element("article", { class: "turn question", "aria-label": "You" },
    element("p", { class: "who" }, "You"), element("p", { class: "said" }, text));
}

export function dividerTurn(text) {
  return element("p", { class: "divider" }, text);
}

/** One answer that grows. Paints at most once per frame, however fast the pieces come. */
export class AnswerTurn {
  constructor({ onPaint, onCopied }) {
    this.text = "";
    this.thought = "";
    this.calls = [];
    this.body = element("div", { class: "prose" });
    this.thinking = element("p");
    this.thoughts = element("details", { class: "thought", hidden: true }, element("summary", {}, "Reasoning"), this.thinking);
    this.called = element("div", { class: "calls" });
    this.note = element("span", { class: "note" });
    this.copy = element("button", { type: "button", class: "copy", hidden: true }, "Copy");
    this.node = element("article", { class: "turn answer", "aria-label": "Answer", "aria-busy": "true" },
      element("p", { class: "who" }, "Answer"), this.thoughts, this.body, this.called,
      element("p", { class: "after" }, this.copy, this.note));
    this.onPaint = onPaint;
    this.frame = null;
    this.copy.addEventListener("click", async () => {
      await copyText(this.text);
      this.copy.textContent = "Copied";
      onCopied();
      setTimeout(() => { this.copy.textContent = "Copy"; }, 1500);
    });
  }

  add(text) {
    this.text += text;
    this.soon();
  }

  think(text) {
    this.thought += text;
    this.soon();
  }

  /** A piece of a call: its name comes first, its arguments in pieces. */
  call({ index = 0, function: { name = "", arguments: given = "" } = {} }) {
    const call = (this.calls[index] ??= { name: "", given: "" });
    call.name += name ?? "";
    call.given += given ?? "";
    this.soon();
  }

  soon() {
    this.frame ??= requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.onPaint(() => {
      this.thoughts.hidden = !this.thought;
      this.thinking.textContent = this.thought;
      renderMarkdown(this.body, asCode(this.text) ?? this.text);
      const nodes = this.calls.map(({ name, given }) => codeFigure(`Calls ${name}`, indented(given) ?? given));
      this.called.replaceChildren(...nodes);
    });
  }

  /** `note` says why the answer ended where it did, if not by itself. */
  finish(note = "") {
    this.paint();
    this.onPaint(() => {
      this.note.textContent = note;
      this.copy.hidden = !this.text;
    });
    this.node.setAttribute("aria-busy", "false");
  }
}

/** An answer that is one JSON object or list, as a block of code. */
function asCode(text) {
  const json = /^\s*[[{]/.test(text) ? indented(text) : null;
  return json === null ? null : `\`\`\`json\n${json}\n\`\`\``;
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // plain http on a name other than localhost has no clipboard API
  const area = element("textarea", { class: "hidden", "aria-hidden": "true" });
  const focused = document.activeElement;
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus();
}
