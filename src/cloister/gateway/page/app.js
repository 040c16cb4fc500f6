// The page: joins the composer, the conversation, the levels and the provider's panel. Stores nothing anywhere:
// messages, key, settings and the session's name live in this tab's memory.

import { adviceFor } from "./advice.js";
import { ApiError, endSession, pageInfo, requestView, streamChat } from "./api.js";
import { mountAudit } from "./audit.js";
import { byId, stayAtEnd } from "./dom.js";
import { showLevels } from "./levels.js";
import { watchProvider } from "./provider-view.js";
import { Speed } from "./speed.js";
import { AnswerTurn, dividerTurn, questionTurn } from "./turns.js";

const input = byId("message");
const scroller = byId("scroll");
const panel = { verdict: byId("verdict"), reason: byId("reason"), feed: byId("feed") };

let model = null;
let level = null;
let levels = [];
const traits = (id) => levels.find((each) => each.id === id) ?? {};
let provider = null;
let session = null; // the name under which a vault keeps this conversation; known to this tab only
let history = []; // the messages the next request begins with
let failed = null; // {question, node, answer} of a question that got no answer
let running = null; // the AbortController of the answer that is coming

// --- sending -----------------------------------------------------------------------------------------------------

function send(text) {
  hideBanner();
  byId("empty").hidden = true;
  const node = questionTurn(text);
  byId("turns").append(node);
  ask(text, node);
}

async function ask(question, node) {
  const stopper = (running = new AbortController());
  const messages = [...history, { role: "user", content: question, ...(byId("public").checked && { public: true }) }];
  const body = {
    model, messages, protection: level, ...(traits(level).uses_vault && { session: (session ??= randomName()) }),
    ...(level === "obfuscated" && byId("auto-redact").checked && { obfuscation: { auto_redact: true } }),
    stream: true, stream_options: { include_usage: true },
    temperature: Number(byId("temperature").value), max_tokens: longestAnswer(),
  };
  const watcher = provider;
  const speed = new Speed();
  const answer = new AnswerTurn({
    onPaint: (change) => stayAtEnd(scroller, change),
    onCopied: () => announce("Answer copied"),
  });
  byId("turns").append(answer.node);
  scroller.scrollTop = scroller.scrollHeight;
  failed = null;
  showRunning(true);
  showStatus(speed);
  watcher.request(body);

  let note = "";
  let problem = null;
  try {
    for await (const event of streamChat(body, apiKey(), stopper.signal)) {
      if (event.id) watcher.began(event.id);
      if (event.thought) answer.think(event.thought);
      if (event.call) answer.call(event.call);
      if (event.text) {
        speed.piece();
        answer.add(event.text);
        watcher.piece(event.text);
      }
      if (event.progress) speed.progress = event.progress;
      if (event.finish || event.usage) speed.progress = null;
      if (event.finish === "length") note = "Cut off at the longest answer allowed (see Settings).";
      if (event.usage) speed.usage = event.usage;
      if (running === stopper) showStatus(speed);
    }
  } catch (error) {
    if (stopper.signal.aborted) note = "Stopped.";
    else problem = error instanceof ApiError ? error : new ApiError("The page failed to read the answer.");
  }

  if (problem) note = answer.text || answer.calls.length ? "Broken off." : "Not answered.";
  answer.finish(note);
  watcher.end(problem ? "failed" : stopper.signal.aborted ? "stopped" : "complete");
  if (running !== stopper) return; // a new chat has begun meanwhile
  running = null;
  if (answer.text) history = [...messages, { role: "assistant", content: answer.text }];
  else if (isRefused(problem) && !input.value) giveBack(question, node, answer);
  else if (!answer.calls.length) failed = { question, node, answer };
  showRunning(false);
  if (speed.pieces) showStatus(speed);
  else showStatus("");
  if (problem) showBanner(problem);
  else announce(stopper.signal.aborted ? "Stopped" : "Answer complete");
}

/** Sent again unchanged it would be refused again. */
function isRefused(problem) {
  if (problem?.code === "insufficient_quota") return true;
  return problem?.status >= 400 && problem.status < 500 && problem.status !== 429;
}

/** A message that was not taken is the writer's again. */
function giveBack(question, node, answer) {
  node.remove();
  answer.node.remove();
  input.value = question;
  growInput();
}

function retry() {
  if (!failed || running) return;
  const { question, node, answer } = failed;
  hideBanner();
  answer.node.remove();
  byId("turns").append(node); // an unanswered question stays out of the history, so it moves to the end
  ask(question, node);
}

/** Where a token takes seconds, a long answer would not end before the server's own limit of time. */
function longestAnswer() {
  const requested = Number(byId("max-tokens").value);
  return traits(level).slow ? Math.min(requested, 64) : requested;
}

function stop() {
  running?.abort();
}

function leaveSession() {
  if (session) endSession(session, apiKey());
  session = null;
}

function randomName() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function apiKey() {
  return byId("api-key").value.trim();
}

/** Ends what is running and sees to it that nothing said so far goes into the next request. */
function forget() {
  stop();
  running = null;
  leaveSession();
  history = [];
  failed = null;
  hideBanner();
  showStatus("");
  showRunning(false);
}

function newChat() {
  forget();
  byId("turns").replaceChildren();
  panel.feed.replaceChildren();
  byId("empty").hidden = false;
  input.focus();
}

/** Messages of one level are not sent again under another. */
function chooseLevel(id) {
  if (byId("turns").childElementCount) {
    forget();
    byId("turns").append(dividerTurn(`Protection is now “${id}”. The messages above are not sent again.`));
    scroller.scrollTop = scroller.scrollHeight;
  }
  level = id;
  document.body.dataset.level = id;
  byId("level-name").textContent = id;
  provider = watchProvider(id, panel, (answer) => requestView(answer, apiKey()));
  byId("empty-verdict").textContent = panel.verdict.textContent;
}

// --- showing -----------------------------------------------------------------------------------------------------

function showRunning(on) {
  const focusWasInside = byId("composer").contains(document.activeElement);
  byId("send").hidden = on;
  byId("stop").hidden = !on;
  if (focusWasInside) input.focus();
}

function showStatus(text) {
  byId("status").textContent = String(text);
}

function announce(text) {
  byId("announce").textContent = text;
}

const ACTIONS = {
  settings: ["Open settings", openSettings],
  retry: ["Try again", retry],
  "new-chat": ["New chat", newChat],
  start: ["Try again", start],
};

function showBanner(error, { advice, action } = adviceFor(error)) {
  byId("banner-message").textContent = error.message;
  byId("banner-advice").textContent = advice;
  const button = byId("banner-action");
  button.hidden = !action || (action === "retry" && !failed);
  if (action) [button.textContent, button.onclick] = ACTIONS[action];
  stayAtEnd(scroller, () => { byId("banner").hidden = false; });
}

function hideBanner() {
  const focusWasInside = byId("banner").contains(document.activeElement);
  byId("banner").hidden = true;
  if (focusWasInside) input.focus();
}

function openSettings() {
  byId("settings").showModal();
  byId("key-needed").hidden = Boolean(apiKey());
  if (!apiKey()) byId("api-key").focus();
}

function growInput() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

/** On a narrow screen the ladder and the provider's panel lie over the chat, one at a time. */
function showSheet(name) {
  for (const each of ["levels", "provider"]) {
    const on = each === name && !byId(each).classList.contains("shown");
    byId(each).classList.toggle("shown", on);
    byId(`toggle-${each}`).setAttribute("aria-expanded", String(on));
  }
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function labelTheme() {
  byId("theme").setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
}

function showMissing(layers) {
  byId("degraded").hidden = !layers.length;
  byId("degraded").textContent = `This server’s seal is weaker than it should be: it lacks ${layers.join(", ")}.`;
}

/** Asks the server what it offers; until it has answered, nothing can be sent. */
async function start() {
  hideBanner();
  try {
    const info = await pageInfo();
    model = info.model;
    byId("model").textContent = info.model;
    byId("api-key").value ||= info.development_key ?? "";
    if (!apiKey()) openSettings();
    showMissing(info.missing_layers);
    levels = info.levels;
    showLevels(byId("level-list"), levels, info.default_level, chooseLevel);
    input.focus();
  } catch (error) {
    showBanner(error, { advice: "See that “cloister serve” is running, then try again.", action: "start" });
  }
}

// --- joining -----------------------------------------------------------------------------------------------------

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running || !input.value.trim()) return;
  if (!provider) return void start();
  send(input.value);
  input.value = "";
  growInput();
});
input.addEventListener("input", growInput);
input.addEventListener("keydown", (event) => {
  // while an input method composes a character, Enter belongs to it
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.isComposing) return;
  if (event.key === "Escape") {
    const sheet = document.querySelector(".shown");
    if (running) stop();
    else if (sheet) {
      showSheet(null);
      byId(`toggle-${sheet.id}`).focus();
    } else hideBanner();
  }
  const typing = event.target.closest("textarea, input:not([type=radio])");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    showSheet(null);
    input.focus();
  }
});
byId("stop").addEventListener("click", stop);
addEventListener("pagehide", leaveSession);
byId("new-chat").addEventListener("click", newChat);
byId("open-settings").addEventListener("click", openSettings);
for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("close", () => input.focus());
mountAudit(() => ({ model, key: byId("api-key").value }));
byId("banner-close").addEventListener("click", hideBanner);
byId("toggle-levels").addEventListener("click", () => showSheet("levels"));
byId("toggle-provider").addEventListener("click", () => showSheet("provider"));
byId("examples").addEventListener("click", (event) => {
  if (event.target.tagName !== "BUTTON") return;
  input.value = event.target.textContent;
  growInput();
  input.focus();
});
byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  labelTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", labelTheme);
labelTheme();

start();
