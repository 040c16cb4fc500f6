// The provider's own account of an answer, fetched repeatedly while the answer comes, and drawn. This page's own text is
// not used here: what the account does not hold is drawn as sealed.

import { element, stayAtEnd } from "./dom.js";
import { addExchange, entry } from "./exchange.js";

const EVERY_MS = 250;
const SEALED = 16; // how many blocks a sealed text is drawn as, however long it is

/** `partitioned`: the public part of the prompt, the answer's tokens, and how much went over the link to the vault. */
export function contributions(feed, ask) {
  return watcher(feed, ask, () => {
    const open = element("span", { class: "public" });
    const promptNote = element("span", { class: "state" });
    const answer = element("pre", { class: "received" });
    const asked = element("b", {}, "0");
    const came = element("b", {}, "0");
    const bytes = element("b", {}, "0 B");
    const layers = element("div", { class: "layers", "aria-hidden": "true" });
    let before = 0;
    const draw = (view) => {
      open.textContent = view.prompt.text;
      promptNote.textContent = view.prompt.tokens.length
        ? `${plural(view.prompt.tokens.length, "token")} received, the public beginning; of the rest only how long it is`
        : "0 tokens received";
      answer.textContent = view.output.text;
      asked.textContent = view.asked_rows.toLocaleString("en");
      came.textContent = view.answered_rows.toLocaleString("en");
      bytes.textContent = size(view.answered_bytes);
      while (layers.childElementCount < Math.min(view.layers, 128)) layers.append(element("i"));
      light(layers, view.answered_rows - before);
      before = view.answered_rows;
    };
    const entries = [
      entry("prompt", element("pre", { class: "blocks" }, open, sealedBlocks()), promptNote),
      entry("answer", answer),
      entry("attention", element("div", { class: "traffic" },
        element("p", {}, asked, " queries to the vault"),
        element("p", {}, came, " contributions back, ", bytes), layers)),
    ];
    draw(NOTHING);
    return { entries, draw };
  });
}

/** `obfuscated`: all streams, side by side. Nothing here says which of them is the answer, for the service cannot. */
export function streams(feed, ask) {
  return watcher(feed, ask, () => {
    const columns = element("div", { class: "streams" });
    const note = element("span", { class: "state" });
    const draw = (view) => {
      while (columns.childElementCount < view.streams.length) columns.append(element("pre", { class: "received" }));
      view.streams.forEach((stream, at) => { columns.children[at].textContent = stream.text; });
      note.textContent = view.streams.length
        ? `${view.streams.length} answers; one of them is real`
        : "nothing yet: the vault makes up other prompts";
    };
    const entries = [
      entry("prompts", element("pre", { class: "blocks" }, sealedBlocks())),
      entry("answers", columns, note),
    ];
    draw(NOTHING);
    return { entries, draw };
  });
}

/** `isolated`: the account is empty, and the panel shows since when and for how long there was a request. */
export function nothing(feed, ask) {
  return watcher(feed, ask, () => {
    const note = element("span", { class: "state" });
    const draw = (view) => {
      const count = view.prompt.tokens.length + view.output.tokens.length + view.answered_rows;
      note.textContent = view.known || count
        ? `${view.prompt.text}${view.output.text}: the service has received this, which it should not have`
        : "0 tokens received, 0 contributions";
    };
    const entries = [
      entry("prompt", element("pre", { class: "blocks" }, sealedBlocks())),
      entry("answer", element("pre", { class: "blocks" }, sealedBlocks()), note),
    ];
    draw(NOTHING);
    return { entries, draw };
  });
}

const NOTHING = {
  known: false, prompt: { tokens: [], text: "" }, output: { tokens: [], text: "" }, streams: [],
  asked_rows: 0, asked_bytes: 0, answered_rows: 0, answered_bytes: 0, layers: 0,
};

/** Asks from the answer's beginning to its end, one question at a time, and once more after the end. */
function watcher(feed, ask, sketch) {
  let shown = null;
  let timer = null;
  let current = null; // of the request that is shown now; what comes late for an earlier one is dropped

  async function look(mine) {
    if (mine.looking) {
      mine.again = mine.ended;
      return;
    }
    mine.looking = true;
    try {
      const account = await ask(mine.id);
      // the node forgets an ended request after some seconds: what it had said before still stands
      if (current === mine && (account.choices[0]?.known || !mine.seen)) {
        mine.seen = account.choices[0]?.known;
        stayAtEnd(feed, () => shown.draw(account.choices[0] ?? NOTHING));
      }
    } catch {
      // asked too early or too late, or the server is away: the next question, or the answer's own error, will tell
    }
    mine.looking = false;
    if (mine.again) {
      mine.again = false;
      look(mine);
    }
  }

  return {
    request({ protection }) {
      clearInterval(timer);
      current = { id: null, sent: performance.now(), seen: false, looking: false, again: false, ended: false };
      shown = sketch();
      shown.state = element("span", { class: "state" }, "asked; the vault reads");
      addExchange(feed, protection, ...shown.entries, entry("time", shown.state));
    },
    began(id) {
      current.id = id;
      shown.state.textContent = "answering…";
      const mine = current;
      look(mine);
      timer = setInterval(() => look(mine), EVERY_MS);
    },
    piece() {},
    end(note) {
      clearInterval(timer);
      const mine = current;
      mine.ended = true;
      shown.state.textContent = `${note} after ${((performance.now() - mine.sent) / 1000).toFixed(1)} s`;
      if (mine.id) look(mine);
    },
  };
}

function sealedBlocks() {
  const blocks = element("span", { class: "sealed", role: "img", "aria-label": "sealed" });
  for (let i = 0; i < SEALED; i += 1) blocks.append(element("i"));
  return blocks;
}

/** Lights the layers' cells one after the other for as long as contributions come. */
function light(layers, news) {
  if (news <= 0) return;
  layers.classList.remove("lit");
  void layers.offsetWidth; // so that the animation restarts
  layers.classList.add("lit");
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
