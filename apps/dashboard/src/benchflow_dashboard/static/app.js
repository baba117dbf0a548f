// The keyboard map. Every key has a visible control, and every page works without this file.
"use strict";

const isTyping = (element) =>
  element.isContentEditable || /^(input|select|textarea)$/i.test(element.tagName);

// A control says its keys itself: data-key="j", or data-key="g r" for two keys in a row.
const press = (keys) => {
  const controls = [...document.querySelectorAll(`[data-key="${CSS.escape(keys)}"]`)];
  const control = controls.find((each) => each.checkVisibility());
  if (control) control.click();
  return Boolean(control);
};

// j and k move between rows (data-row); Enter opens the link of the row, as a browser does.
const move = (step) => {
  const rows = [...document.querySelectorAll("[data-row] a:first-of-type")];
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step];
  if (next) next.focus();
  return Boolean(next);
};

const nextFailure = () => {
  const rows = [...document.querySelectorAll("[data-row]")];
  const here = rows.findIndex((row) => row.contains(document.activeElement));
  const order = [...rows.slice(here + 1), ...rows.slice(0, here + 1)];
  const row = order.find((each) => each.hasAttribute("data-failed"));
  if (row) row.querySelector("a").focus();
  return Boolean(row);
};

const copyCommand = () => {
  const command = document.querySelector("[data-cli]");
  if (!command || !navigator.clipboard) return false;
  navigator.clipboard.writeText(command.textContent);
  const answer = document.querySelector("[data-answer]");
  if (answer) answer.textContent = "copied";
  return true;
};

const actions = {
  "?": () => document.querySelector("#help").showModal() || true,
  "/": () => {
    const field = document.querySelector("[data-search]");
    if (field) field.focus();
    return Boolean(field);
  },
  j: () => move(1),
  k: () => move(-1),
  n: nextFailure,
  y: copyCommand,
};

let first = "";
let forget = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
  if (document.documentElement.dataset.keys === "off") return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const keys = first ? `${first} ${event.key}` : event.key;
  clearTimeout(forget);
  const known = press(keys) || (actions[keys] ? actions[keys]() : false);
  const begins = !first && document.querySelector(`[data-key^="${CSS.escape(event.key)} "]`);
  first = !known && begins ? event.key : "";
  if (first) forget = setTimeout(() => (first = ""), 1500);
  if (known || first) event.preventDefault();
});

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-help]")) {
    event.preventDefault();
    document.querySelector("#help").showModal();
  }
  if (event.target.closest("[data-copy]")) copyCommand();
});
