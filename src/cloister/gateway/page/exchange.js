// One request as the provider's panel shows it: a section that folds, with entries by name. Levels are elsewhere.

import { element } from "./dom.js";

/** Adds a section for a new request and folds the earlier ones. */
export function addExchange(feed, note, ...entries) {
  for (const earlier of feed.children) earlier.open = false;
  const time = new Date().toLocaleTimeString([], { hour12: false });
  feed.append(element("details", { class: "exchange", open: true },
    element("summary", {}, `Request ${feed.childElementCount + 1}`,
      element("span", {}, note ? `${note}, ${time}` : time)),
    ...entries));
  feed.scrollTop = feed.scrollHeight;
}

export function entry(role, ...content) {
  return element("div", { class: "entry", "data-role": role }, element("span", { class: "role" }, role), ...content);
}
