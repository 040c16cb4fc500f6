// Makes DOM nodes. Text only ever becomes text: nothing in this page parses a string as HTML.

/** element("p", {class: "note", hidden: true}, "text", childNode…) */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export const byId = (id) => document.getElementById(id);

/** Runs `change`, then keeps `scroller` at its end if that is where its reader was. */
export function stayAtEnd(scroller, change) {
  const atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 48;
  change();
  if (atEnd) scroller.scrollTop = scroller.scrollHeight;
}
