// Which part of a prompt other tenants may share, which is held private, and why. The node shows this to the owner of a
// request alone. What the detector has not read yet is private.

import { element } from "./dom.js";
import { entry } from "./exchange.js";

const EVERY_MS = 500;
const MOST_QUESTIONS = 40;

const WHY = {
  public: () => "others may share it: no private data was seen in it",
  uncertain: ({ category }) => `private: it might be about ${named(category)}`,
  private: ({ tier, category }) =>
    category === "inherited" ? "private: it follows what is"
      : tier === 0 ? "private: it was not read"
        : `private: it is about ${named(category)} (${tier === 1 ? "a rule" : tier === 2 ? "the tagger" : "the model"} decided)`,
};

/** {entry(), began(id), end()}: draws the account of a request as soon as a detector has read it. */
export function sharing(ask) {
  let current = null;

  async function look(mine) {
    for (let asked = 0; asked < MOST_QUESTIONS && current === mine; asked += 1) {
      let view = null;
      try {
        view = (await ask(mine.id)).choices[0];
      } catch {
        // asked too early or too late
      }
      if (view?.known && current === mine) draw(mine, view);
      if (mine.drawn || mine.ended) return;
      await new Promise((done) => { setTimeout(done, EVERY_MS); });
    }
  }

  return {
    entry() {
      const text = element("pre", { class: "blocks" });
      const note = element("span", { class: "state" }, "not read yet: all of it is private");
      current = { id: null, text, note, drawn: false, ended: false };
      return entry("shared", text, note);
    },
    began(id) {
      current.id = id;
      look(current);
    },
    end() {
      current.ended = true;
    },
  };
}

function draw(mine, view) {
  const found = view.found ? `; ${view.found} tokens were in the cache, ${view.found_shared} of them shared between users` : "";
  if (!view.blocks.length) {
    if (found) mine.note.textContent = `not read yet: all of it is private${found}`;
    return;
  }
  mine.drawn = true;
  mine.text.replaceChildren(...view.blocks.map((block) =>
    element("span", { class: block.label === "public" ? "may-share" : "held", title: WHY[block.label](block) }, block.text)));
  const first = view.blocks.findIndex((block) => block.label !== "public");
  mine.note.textContent = (first < 0
    ? "others may share all of it"
    : `${first ? "others may share what stands before" : "none of it is shared"}: ${WHY[view.blocks[first].label](view.blocks[first])}`) + found;
}

function named(category) {
  return (category ?? "something of yours").replaceAll("_", " ");
}
