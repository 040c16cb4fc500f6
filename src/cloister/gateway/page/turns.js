// Draws the turns of a conversation. The server and the provider's view are elsewhere.

import { element } from "./dom.js";
import { renderMarkdown } from "./markdown.js";

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
    this.body = element("div", { class: "prose" });
    this.note = element("span", { class: "note" });
    this.copy = element("button", { type: "button", class: "copy", hidden: true }, "Copy");
    this.node = element("article", { class: "turn answer", "aria-label": "Answer", "aria-busy": "true" },
      element("p", { class: "who" }, "Answer"), this.body,
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
    this.frame ??= requestAnimationFrame(() => this.paint());
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.onPaint(() => renderMarkdown(this.body, this.text));
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
