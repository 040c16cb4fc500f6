// What the provider sees, one function per level. Each says so in words, and returns the watcher that shows it live.
//
// A watcher is {request(body), piece(text), end(note)}. `open` and `shared` are fed by what this page sends and receives,
// because there the provider's process sees just that. The other levels are not offered yet; when they are, their
// watchers are to be fed by the controller's account of what crossed the link, never by this page's own text.

import { element, stayAtEnd } from "./dom.js";

const VIEWS = { open, shared, partitioned, obfuscated, isolated, mpc };

/** Describes `level` in the panel {verdict, reason, feed} and returns its watcher, which adds to what the feed shows. */
export function watchProvider(level, panel) {
  return VIEWS[level](panel);
}

function open(panel) {
  say(panel, "Everything.",
    "At this level nothing stands between you and the provider: it reads your words, the answer, your key, " +
    "your network address and the time. Below is the text it was sent, word for word. Clearing this page does " +
    "not clear what it has seen.");
  return transcript(panel.feed);
}

function shared(panel) {
  say(panel, "Everything.",
    "The provider reads your words and the answer. Only what other users could learn from the shared prefix cache " +
    "is held back.");
  return transcript(panel.feed);
}

function partitioned(panel) {
  say(panel, "The answer’s tokens and attention contributions.", "Your prompt stays in a vault of its own.");
  return unfed(panel.feed);
}

function obfuscated(panel) {
  say(panel, "Several answers, one of them real.", "It cannot tell which; your prompt stays in a vault of its own.");
  return unfed(panel.feed);
}

function isolated(panel) {
  say(panel, "Nothing.", "A vault of your own decodes alone, on the shared weights.");
  return unfed(panel.feed);
}

function mpc(panel) {
  say(panel, "Secret shares.", "Each party computes on numbers that say nothing by themselves.");
  return unfed(panel.feed);
}

function say(panel, verdict, reason) {
  panel.verdict.textContent = verdict;
  panel.reason.textContent = reason;
}

function unfed(feed) {
  return {
    request() {
      feed.append(element("p", { class: "unfed" }, "A request was sent. This page cannot yet show this level live."));
    },
    piece() {},
    end() {},
  };
}

/** Shows each request's messages and settings, then the answer piece by piece, tinted so that the pieces can be told. */
function transcript(feed) {
  let answer = null;
  let state = null;

  return {
    request({ messages, ...settings }) {
      for (const earlier of feed.children) earlier.open = false;
      const count = `${messages.length} ${messages.length === 1 ? "message" : "messages"}`;
      const time = new Date().toLocaleTimeString([], { hour12: false });
      answer = element("pre", { class: "pieces" });
      state = element("span", { class: "state" }, "coming back…");
      feed.append(element("details", { class: "exchange", open: true },
        element("summary", {}, `Request ${feed.childElementCount + 1}`, element("span", {}, `${count}, ${time}`)),
        ...messages.map(({ role, content }) => entry(role, element("pre", {}, content))),
        entry("settings", element("pre", {}, linesOf(settings))),
        entry("answer", answer, state)));
      feed.scrollTop = feed.scrollHeight;
    },
    piece(text) {
      stayAtEnd(feed, () => answer.append(element("span", {}, text)));
    },
    end(note) {
      state.textContent = note;
    },
  };
}

function linesOf(settings) {
  return Object.entries(settings).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join("\n");
}

function entry(role, ...content) {
  return element("div", { class: "entry", "data-role": role }, element("span", { class: "role" }, role), ...content);
}
