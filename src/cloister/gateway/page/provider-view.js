// What the provider sees, one function per level. Each describes it in words and returns the watcher that shows it live.
//
// A watcher is {request(body), began(id), piece(text), end(note)}. `open` and `shared` are fed by what this page sends
// and receives, because there the provider's process sees just that. `partitioned` and `isolated` are fed by that
// process's own account of what it received (see account.js), never by this page's text, and so are `obfuscated` and
// `mpc`.

import { contributions, nothing, streams } from "./account.js";
import { element, stayAtEnd } from "./dom.js";
import { addExchange, entry } from "./exchange.js";
import { sharing } from "./sharing.js";

const VIEWS = { open, shared, partitioned, obfuscated, isolated, mpc };

/** What the provider sees at each level, in a few words. */
export const VERDICTS = {
  open: "Everything.",
  shared: "Everything; others find common beginnings.",
  partitioned: "The answer, not your words.",
  obfuscated: "Several answers, one of them real.",
  isolated: "When you ask, and for how long.",
  mpc: "Secret shares.",
};

/** Describes `level` in the panel {verdict, reason, feed} and returns its watcher, which adds to what the feed shows.
    `ask(id)` fetches the provider's account of one answer. */
export function watchProvider(level, panel, ask) {
  panel.verdict.textContent = VERDICTS[level];
  return VIEWS[level](panel, ask);
}

function open(panel) {
  say(panel,
    "At this level nothing stands between you and the provider: it reads your words, the answer, your key, " +
    "your network address and the time. Below is the text it was sent, word for word. Clearing this page does " +
    "not clear the provider’s copy.");
  return transcript(panel.feed);
}

function shared(panel, ask) {
  say(panel,
    "The provider reads your words and the answer. Other users find how your words begin if about a dozen accounts sent " +
    "the same, or if it is a registered template. Whether you alone sent a text, seven accounts that collude can tell in " +
    "at most 1% of their guesses. Below you see which part of your words a detector holds back in any case, and why.");
  const parts = sharing(ask);
  const words = transcript(panel.feed, () => [parts.entry()]);
  return {
    ...words,
    began: parts.began,
    end(note) {
      words.end(note);
      parts.end();
    },
  };
}

function partitioned(panel, ask) {
  say(panel,
    "Your words are read in a vault of your own. The provider’s service makes the answer, and for each of its tokens " +
    "asks the vault what your words add to the attention. Your words can be computed from those numbers, so the " +
    "service is sealed: no network, no disk, and only tokens leave it. You still trust the operator of this machine. " +
    "Below is what the service itself says it has received.");
  return contributions(panel.feed, ask);
}

function obfuscated(panel, ask) {
  say(panel,
    "Mark what is secret: <redacted>Ann Lee</redacted>. Your prompt goes out among made-up ones that differ from it in " +
    "what you marked, and the provider’s service answers all of them at once. Nothing in the order or the timing shows " +
    "which is yours; the words may: with λ = 7 a careful reader found it in 20 of 60 prompts, a larger model in " +
    "10 of 56 (docs/obfuscation.md). A secret keeps its made-up words in this session; another session draws new ones, and the words " +
    "that come again are yours. Words that you did not mark are in all of them. This page speaks plain HTTP, so the " +
    "gateway picks your answer out, and knows which it is; with cloister proxy your own machine does. Below is what the " +
    "service itself says it has made.");
  return streams(panel.feed, ask);
}

function isolated(panel, ask) {
  say(panel,
    "A vault of your own reads your words and makes the answer alone, on the shared weights. The provider’s service " +
    "takes no part. You still trust the operator of this machine. Below is what the service itself says it has received.");
  return nothing(panel.feed, ask);
}

function mpc(panel, ask) {
  say(panel,
    "A client process reads your words and splits each into random shares, one for each of three parties. They compute " +
    "the answer on shares. What one party holds is noise; two together can read everything. So this protects you only if " +
    "independent operators run the parties: a node that runs all three itself hides nothing from its operator. Here the " +
    "client process, too, runs on the provider’s machine; run it on yours with cloister mpc proxy. Each party learns " +
    "about how long your words and the answer are. Expect seconds for each token. Below is what the service itself says " +
    "it has received.");
  return nothing(panel.feed, ask);
}

function say(panel, reason) {
  panel.reason.textContent = reason;
}

/** Shows each request's messages and settings, then the answer piece by piece, tinted so that the pieces can be distinguished. */
function transcript(feed, more = () => []) {
  let answer = null;
  let state = null;

  return {
    request({ messages, ...settings }) {
      const count = `${settings.protection}, ${messages.length} ${messages.length === 1 ? "message" : "messages"}`;
      answer = element("pre", { class: "pieces" });
      state = element("span", { class: "state" }, "coming back…");
      addExchange(feed, count,
        ...messages.map(({ role, content }) => entry(role, element("pre", {}, content))),
        entry("settings", element("pre", {}, linesOf(settings))),
        ...more(),
        entry("answer", answer, state));
    },
    began() {},
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
