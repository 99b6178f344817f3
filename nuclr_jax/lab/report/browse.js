"use strict";
// Shows the lists of a page; `browse.py` writes their rows. Texts are those of
// whoever made them: they only ever become the text of an element.

const FIRST = 24, MORE = 96;  // cards
const OF_GROUP = 12;  // rows of a group that are shown at first
const SHORT = 240;  // characters of a text on a card
// `FORMULA` of captions.py, whose \s is not that of JavaScript.
const SPACE = "\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029" +
  "\\u202f\\u205f\\u3000";
const FORMULA = new RegExp(`^(?:[${SPACE}]*[=+\\-@＝＋－＠]|[\\t\\r\\n'])`);

const read = id => JSON.parse(document.getElementById(id).textContent);
const ARRAYS = {
  int32: Int32Array, float32: Float32Array, float64: Float64Array,
};

// An array of numbers; those that are missing are NaN.
function decode({ type, data }) {
  const text = atob(data), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAYS[type](bytes.buffer);
}

const common = read("common");
const lists = {};

function element(name, options = {}, ...children) {
  const made = Object.assign(document.createElement(name), options);
  made.append(...children);
  return made;
}

// Opens a list: reads its rows and makes its controls, once.
function open(name) {
  if (lists[name]) return lists[name];
  const list = lists[name] = read("rows-" + name);
  list.photo = decode(list.photo);
  for (const column of Object.values(list.columns))
    for (const kind of Object.keys(column)) column[kind] = decode(column[kind]);
  list.marked = new Set(remembered(name).filter(i => i < list.count));
  list.open = new Set();  // groups of which all rows are shown
  const section = document.getElementById(name);
  list.search = element("input", {
    type: "search", placeholder: "filter by name or text",
    ariaLabel: "filter by name or text", oninput: () => arrange(list),
  });
  list.order = element("select", {
    ariaLabel: "order", onchange: () => arrange(list),
  }, ...list.orders.map(([label]) => element("option", {}, label)));
  const box = (label, checked) => {
    const input = element("input", {
      type: "checkbox", checked, onchange: () => arrange(list),
    });
    return [input, element("label", {}, input, " " + label)];
  };
  const [only, onlyLabel] = box("marked only", false);
  const [once, onceLabel] = box("each caption once", list.once);
  list.only = only;
  list.once = once;
  list.found = element("span");
  const tools = [list.search, list.order, onlyLabel, onceLabel, list.found];
  if (!list.columns.caption) tools.splice(3, 1);
  list.cards = element("div", { className: "gallery" });
  list.more = element("button", {
    className: "more", onclick: () => extend(list, MORE),
  });
  section.append(element("div", { className: "tools" }, ...tools), list.cards,
    list.more);
  arrange(list);
  return list;
}

// The text of a column in a row, as far as the page has it.
function textOf(list, column, row) {
  const found = list.columns[column];
  return found && found.texts ? common.texts[found.texts[row]] : "";
}

const missingOf = (list, column, row) =>
  common.missing[list.columns[column].texts[row]] || 0;

// Filters and sorts the rows of a list, and shows the first ones.
function arrange(list) {
  const words = list.search.value.toLowerCase().trim();
  let rows = Array.from({ length: list.count }, (_, i) => i);
  if (words) {
    list.lower ||= rows.map(row => Object.keys(list.columns)
      .map(x => textOf(list, x, row)).join("\n").toLowerCase());
    rows = rows.filter(row => list.lower[row].includes(words));
  }
  if (list.only.checked) rows = rows.filter(row => list.marked.has(row));
  const [, column, descending] = list.orders[list.order.selectedIndex];
  const found = list.columns[column];
  if (found && found.texts) {
    const compare = new Intl.Collator(undefined, { numeric: true }).compare;
    rows.sort((a, b) =>
      compare(textOf(list, column, a), textOf(list, column, b)));
  } else if (found) {
    const x = found.numbers, sign = descending ? -1 : 1;
    const last = descending ? -Infinity : Infinity;
    const key = row => isNaN(x[row]) ? last : x[row];
    rows.sort((a, b) => sign * (key(a) - key(b)) || a - b);
  }
  if (list.once.checked && list.columns.caption) {
    const seen = new Set(), captions = list.columns.caption.texts;
    rows = rows.filter(row => {
      const isNew = !seen.has(captions[row]);
      seen.add(captions[row]);
      return isNew;
    });
  }
  list.rows = rows;
  list.items = grouped(list, rows, !column && !words && !list.only.checked);
  list.found.textContent = `${rows.length.toLocaleString("en")} of ` +
    `${list.count.toLocaleString("en")} rows`;
  list.cards.replaceChildren();
  list.at = 0;
  extend(list, FIRST);
}

// What is shown of rows in their order: numbers of rows, and lines above and
// below groups, of which only some rows are shown at first.
function grouped(list, rows, whole) {
  const of = list.group && list.columns[list.group].numbers;
  if (!of || list.orders[list.order.selectedIndex][1]) return rows;
  const sizes = new Map(), items = [];
  for (const row of rows) sizes.set(of[row], (sizes.get(of[row]) || 0) + 1);
  let group = null, shown = 0;
  for (const row of rows) {
    if (of[row] !== group) {
      group = of[row];
      shown = 0;
      items.push({ group, size: sizes.get(group) });
    }
    shown += 1;
    if (!whole || shown <= OF_GROUP || list.open.has(group)) items.push(row);
    else if (shown === OF_GROUP + 1)
      items.push({ group, rest: sizes.get(group) - OF_GROUP });
  }
  return items;
}

// Shows more rows of a list.
function extend(list, count) {
  const end = Math.min(list.at + count, list.items.length);
  for (; list.at < end; list.at++) {
    const item = list.items[list.at];
    list.cards.append(
      typeof item === "number" ? card(list, item) : line(list, item));
  }
  const left = list.items.length - end;
  list.more.hidden = !left;
  list.more.textContent = `Show ${Math.min(MORE, left)} more`;
}

function line(list, item) {
  const name = `${list.group} ${item.group}`;
  if (!item.rest)
    return element("div", { className: "group" }, `${name}: ${item.size} rows`);
  const show = element("button", {
    onclick: () => {
      const at = list.at;
      list.open.add(item.group);
      arrange(list);
      extend(list, at + MORE - FIRST);
    },
  }, `Show the other ${item.rest.toLocaleString("en")} of ${name}`);
  return element("div", { className: "group" }, show);
}

// One row: a thumbnail that marks it, its name, text and numbers.
function card(list, row) {
  const made = element("figure", { className: "card" });
  const mark = element("input", {
    type: "checkbox", checked: list.marked.has(row),
    onchange: () => {
      mark.checked ? list.marked.add(row) : list.marked.delete(row);
      made.classList.toggle("marked", mark.checked);
      remember(list);
    },
  });
  made.classList.toggle("marked", mark.checked);
  const source = common.thumbnails[list.photo[row]];
  const picture = source
    ? element("img", { src: source, alt: "" })
    : element("span", { className: "none" });
  // Of small images, which are PNG, every pixel is to be seen.
  if (source && source.startsWith("data:image/png")) picture.className = "small";
  if (!source && Object.keys(common.thumbnails).length)
    picture.textContent = "no thumbnail this far down the list";
  const hasPictures = source || picture.textContent;
  made.append(element("label", {}, ...(hasPictures ? [picture] : []), mark,
    " mark"));
  const key = textOf(list, "key", row);
  if (key) made.append(element("div", {}, element("code", {}, key), " ",
    element("button", { type: "button", onclick: event => copy(event, key) },
      "copy")));
  if (list.columns.caption) made.append(shortened(list, "caption", row));
  const numbers = element("div", { className: "numbers" });
  for (const [column, label] of Object.entries(list.shown)) {
    const found = list.columns[column];
    if (!found) continue;
    const texts = Boolean(found.texts);
    const value = texts ? textOf(list, column, row) : found.numbers[row];
    if (value === "" || Number.isNaN(value)) continue;
    const words = texts ? shortened(list, column, row) : number(value);
    numbers.append(element("div", {}, label + " ", words));
  }
  made.append(numbers);
  return made;
}

// A text, of which the rest is shown on a click.
function shortened(list, column, row) {
  const text = textOf(list, column, row) || "no caption";
  const missing = missingOf(list, column, row);
  const made = element("div", { className: "caption" }, text.slice(0, SHORT));
  const end = missing ? `... (${missing.toLocaleString("en")} more ` +
    `characters in ${list.source})` : "";
  if (text.length > SHORT) {
    const more = element("button", {
      type: "button", onclick: () => made.replaceChildren(text + end),
    }, "more");
    made.append("... ", more);
  } else made.append(end);
  return made;
}

function number(x) {
  if (Number.isInteger(x)) return x.toLocaleString("en");
  const size = Math.abs(x);
  return size >= 1e-3 && size < 1e4 ? x.toPrecision(4).replace(/\.?0+$/, "")
    : x.toExponential(1);
}

async function copy(event, text) {
  const button = event.currentTarget;
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // not allowed here: in the way of older browsers
    const area = element("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "copied";
}

// Marks outlive the page where the browser allows it.
const PLACE = `nuclr ${common.digest} `;

function remembered(name) {
  try {
    return JSON.parse(localStorage.getItem(PLACE + name)) || [];
  } catch {
    return [];
  }
}

function remember(list) {
  try {
    localStorage.setItem(PLACE + list.name, JSON.stringify([...list.marked]));
  } catch {}  // they are kept until the page is closed
  showSaved();
}

const saved = element("div", { id: "saved", hidden: true });

function showSaved() {
  const some = Object.values(lists).filter(x => x.marked.size);
  saved.hidden = !some.length;
  saved.replaceChildren("Marked:", ...some.flatMap(list => [
    element("button", { type: "button", onclick: () => save(list) },
      `Save ${list.marked.size} of ${list.name} as CSV`),
    element("button", { type: "button", onclick: () => {
      list.marked.clear();
      remember(list);
      arrange(list);
    } }, "unmark"),
  ]));
}

const cell = text => FORMULA.test(text) ? "'" + text : text;

function quoted(text) {
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// The marked rows of a list as CSV. A text that the page has not all of is left
// empty, so that nobody takes its beginning for the whole; that is in a column
// of its own.
function csvOf(list) {
  const rows = [...list.marked].sort((a, b) => a - b);
  const names = Object.keys(list.columns);
  const columns = names.map(name => [name, row => {
    const found = list.columns[name];
    if (found.texts)
      return missingOf(list, name, row) ? "" : cell(textOf(list, name, row));
    return exact(found.numbers, row);
  }]);
  for (const name of names) {
    const isCut = row => list.columns[name].texts && missingOf(list, name, row);
    if (rows.some(isCut)) columns.push([name + "_beginning",
      row => isCut(row) ? cell(textOf(list, name, row)) : ""]);
  }
  const lines = [columns.map(([name]) => quoted(name))];
  for (const row of rows)
    lines.push(columns.map(([, value]) => quoted(value(row))));
  return lines.map(x => x.join(",") + "\r\n").join("");
}

// A number as a text that says no more than it holds.
function exact(numbers, row) {
  const x = numbers[row];
  if (isNaN(x)) return "";
  return String(numbers instanceof Float32Array ? Number(x.toPrecision(6)) : x);
}

function save(list) {
  const blob = new Blob([csvOf(list)], { type: "text/csv;charset=utf-8" });
  const link = element("a", {
    href: URL.createObjectURL(blob), download: `${list.name}_marked.csv`,
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// Lists open as they come near, so that the page is there at once.
// The bar is the last in the page, so that it sticks to the bottom everywhere.
document.addEventListener("DOMContentLoaded",
  () => document.body.append(saved));
const near = new IntersectionObserver(entries => {
  for (const x of entries)
    if (x.isIntersecting) {
      near.unobserve(x.target);
      open(x.target.id);
      showSaved();
    }
}, { rootMargin: "800px" });
for (const x of document.querySelectorAll("section.list")) {
  near.observe(x);
  if (remembered(x.id).length) open(x.id);
}
showSaved();
