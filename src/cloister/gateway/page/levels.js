// The ladder of protection levels. Which there are, which are enabled and what the provider sees: the server's word. In
// a narrow column there is room for a few words; the whole is the level's description for screen readers.

import { element } from "./dom.js";
import { VERDICTS } from "./provider-view.js";

/** Fills `list` with one radio button per level and calls `onChange(id)` for the level chosen: `preferred` at first. */
export function showLevels(list, levels, preferred, onChange) {
  const offered = levels.filter((level) => level.enabled).map((level) => level.id);
  const chosen = offered.includes(preferred) ? preferred : offered[0];
  list.replaceChildren(...levels.map((level) => row(level, level.id === chosen)));
  list.onchange = (event) => onChange(event.target.value);
  if (chosen) onChange(chosen);
}

function row({ id, enabled, provider_sees: sees }, checked) {
  const radio = element("input", {
    type: "radio", name: "protection", value: id, id: `level-${id}`, checked, disabled: !enabled,
    "aria-describedby": `level-${id}-sees`,
  });
  const name = element("label", { for: `level-${id}` }, id);
  const note = enabled ? "" : element("span", { class: "not-yet" }, "not offered");
  return element("div", { class: "level", "data-level": id },
    radio, name, note, element("p", {}, VERDICTS[id] ?? sees),
    element("p", { class: "hidden", id: `level-${id}-sees` }, sees));
}
