// Light Markdown into DOM nodes: paragraphs, headings, lists, quotes, tables, fenced code, `code`, **bold**, *italic*.
// Links and images stay the text they are: a model's answer must not be able to make the browser fetch or open anything.

import { element } from "./dom.js";

/** Shows `text` in `container`. Called again as text grows, it touches only the blocks that changed. */
export function renderMarkdown(container, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, i) => {
    const shown = container.children[i];
    const source = JSON.stringify(block);
    if (shown?.markdownSource === source) return;
    const node = nodeOf(block);
    node.markdownSource = source;
    if (shown) shown.replaceWith(node);
    else container.append(node);
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
}

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^(\s*)[-*+]\s+(.*)$/;
const NUMBER = /^(\s*)(\d{1,9})[.)]\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const TABLE_RULE = /^\s{0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/;
const RULE = /^\s{0,3}(-{3,}|\*{3,}|_{3,})\s*$/;

function blocksOf(text) {
  const blocks = [];
  let fence = null;
  let apart = true; // whether a blank line or another block stands before this line
  for (const line of text.split("\n")) {
    const last = blocks.at(-1);
    const mark = line.match(FENCE);
    if (fence) {
      if (mark && mark[1].startsWith(fence) && !mark[2]) fence = null;
      else last.lines.push(line);
      apart = true;
      continue;
    }
    if (mark) {
      fence = mark[1];
      blocks.push({ kind: "code", language: mark[2], lines: [] });
      continue;
    }
    if (!line.trim()) {
      apart = true;
      continue;
    }
    addLine(blocks, line, apart);
    apart = false;
  }
  return blocks;
}

function addLine(blocks, line, apart) {
  const last = blocks.at(-1);
  let found;
  if (isTableHead(last, line, apart)) blocks.splice(-1, 1, { kind: "table", head: cellsOf(last.lines[0]), rows: [] });
  else if (last?.kind === "table" && !apart && line.includes("|")) last.rows.push(cellsOf(line));
  else if (RULE.test(line)) blocks.push({ kind: "rule" });
  else if ((found = line.match(HEADING))) blocks.push({ kind: "heading", depth: found[1].length, lines: [found[2]] });
  else if ((found = line.match(BULLET))) addItem(blocks, "ul", found[1].length, found[2], 1);
  else if ((found = line.match(NUMBER))) addItem(blocks, "ol", found[1].length, found[3], Number(found[2]));
  else if ((found = line.match(QUOTE))) {
    if (last?.kind === "quote" && !apart) last.lines.push(found[1]);
    else blocks.push({ kind: "quote", lines: [found[1]] });
  } else if (last?.kind === "list" && (!apart || /^\s{2,}/.test(line))) last.items.at(-1).lines.push(line.trim());
  else if (last?.kind === "paragraph" && !apart) last.lines.push(line);
  else blocks.push({ kind: "paragraph", lines: [line] });
}

/** A line of dashes under one line that has as many cells. */
function isTableHead(last, line, apart) {
  return !apart && last?.kind === "paragraph" && last.lines.length === 1 && last.lines[0].includes("|") &&
    TABLE_RULE.test(line) && cellsOf(line).length === cellsOf(last.lines[0]).length;
}

function cellsOf(line) {
  return line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function addItem(blocks, tag, indent, text, start) {
  let list = blocks.at(-1);
  const nested = list?.kind === "list" && indent > 1;
  if (list?.kind !== "list" || (list.tag !== tag && !nested)) {
    list = { kind: "list", tag, start, items: [] };
    blocks.push(list);
  }
  list.items.push({ depth: nested ? Math.min(3, Math.floor(indent / 2)) : 0, tag, lines: [text] });
}

function nodeOf(block) {
  switch (block.kind) {
    case "rule": return element("hr");
    case "code": return codeNode(block);
    case "list": return listNode(block);
    case "table": return tableNode(block);
    // the page's own headings end at h2, so an answer's begin at h3
    case "heading": return element(`h${Math.min(6, block.depth + 2)}`, {}, ...inline(block.lines.join(" ")));
    case "quote": return element("blockquote", {}, ...inline(block.lines.join("\n")));
    default: return element("p", {}, ...inline(block.lines.join("\n")));
  }
}

const codeNode = ({ language, lines }) => codeFigure(language, lines.join("\n"));

export function codeFigure(caption, code) {
  const pre = element("pre", { tabindex: 0 }, element("code", {}, code));
  return element("figure", { class: "code" }, caption ? element("figcaption", {}, caption) : "", pre);
}

/** Each row has as many cells as the head, as in GitHub's Markdown. */
function tableNode({ head, rows }) {
  const row = (tag, cells) => element("tr", {}, ...head.map((_, at) => element(tag, {}, ...inline(cells[at] ?? ""))));
  return element("div", { class: "table", tabindex: 0 }, element("table", {},
    element("thead", {}, row("th", head)), element("tbody", {}, ...rows.map((cells) => row("td", cells)))));
}

function listNode({ tag, start, items }) {
  const root = element(tag, start > 1 ? { start } : {});
  for (const item of items) {
    let list = root;
    for (let depth = 0; depth < item.depth && list.lastElementChild; depth += 1) {
      const parent = list.lastElementChild;
      const inner = [...parent.children].find((child) => child.matches("ul, ol"));
      list = inner ?? parent.appendChild(element(item.tag));
    }
    list.append(element("li", {}, ...inline(item.lines.join("\n"))));
  }
  return root;
}

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(?=\S)([\s\S]*?\S)\*\*|(?<![\w*])\*(?=[^\s*])([^*]*?[^\s*])\*(?![\w*])/g;

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > end) nodes.push(text.slice(end, found.index));
    const [whole, , code, bold, italic] = found;
    if (code !== undefined) nodes.push(element("code", {}, code));
    else if (bold !== undefined) nodes.push(element("strong", {}, ...inline(bold)));
    else nodes.push(element("em", {}, ...inline(italic)));
    end = found.index + whole.length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}
