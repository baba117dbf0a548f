// The tree of a rollout: keys, roving focus, the pane without a page load, and groups off screen.
// Without this file each node and each control is a link that loads the page.
"use strict";

const tree = {
  items: null, // in the order of the document; null until a key or a click needs them
  chunks: [],
  current: null,
  selected: null,
  timer: 0,
  request: null, // the request for a pane that is under way
  focus: null,
};

const treeRoot = () => document.querySelector("#tree");

const allItems = () => (tree.items ||= [...treeRoot().querySelectorAll('[role="treeitem"]')]);
const levelAt = (at) => Number(allItems()[at]?.getAttribute("aria-level") ?? 0);
const isItem = (element) => Boolean(element?.matches('#tree [role="treeitem"]'));

const readTree = () => {
  const root = treeRoot();
  tree.items = null;
  tree.chunks = root
    ? [...root.querySelectorAll("g[data-box]")].map((group) => {
        const [left, top, right, bottom] = group.dataset.box.split(" ").map(Number);
        return { group, left, top, right, bottom, hidden: !group.hasAttribute("data-near") };
      })
    : [];
  if (!root) return;
  // Nodes that the server has sent.
  for (const item of root.querySelectorAll("a:not([tabindex])")) item.setAttribute("tabindex", "-1");
  tree.selected = root.querySelector('[aria-selected="true"]');
  setCurrent(tree.selected || root.querySelector('[role="treeitem"]'));
};

// The node that Tab leads to.
const setCurrent = (item) => {
  if (tree.current) tree.current.setAttribute("tabindex", "-1");
  if (item) item.setAttribute("tabindex", "0");
  tree.current = item;
};

const setSelected = (item) => {
  if (tree.selected) tree.selected.removeAttribute("aria-selected");
  item.setAttribute("aria-selected", "true");
  tree.selected = item;
};

// As the server quotes an id in a URL and in an attribute.
const quoteId = (name) =>
  encodeURIComponent(name).replace(
    /[!'()*]/g,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  );
const itemOf = (name) => document.getElementById(`t-${quoteId(name)}`);
const isFolded = (item) => item.getAttribute("aria-expanded") === "false";

// The choices that were made since the page was loaded are in the address only.
const carry = (href) => {
  const url = new URL(href, location.href);
  const here = new URL(location.href).searchParams;
  for (const name of ["tab", "hide", "full"]) {
    url.searchParams.delete(name);
    if (here.has(name)) url.searchParams.set(name, here.get(name));
  }
  return url;
};

// A group more than a screen away from the visible part is not drawn. Its nodes stay in the document.
const hideOffScreen = () => {
  const frame = document.querySelector("#tree-scroll");
  if (!frame || !tree.chunks.length) return;
  const { scrollLeft: x, scrollTop: y, clientWidth: width, clientHeight: height } = frame;
  for (const chunk of tree.chunks) {
    const isNear =
      chunk.bottom >= y - height - 50 &&
      chunk.top <= y + 2 * height + 50 &&
      chunk.right >= x - width - 200 &&
      chunk.left <= x + 2 * width + 200;
    if (isNear === chunk.hidden) {
      chunk.hidden = !isNear;
      chunk.group.toggleAttribute("data-near", isNear);
    }
  }
  drawViewport(frame);
};

const drawViewport = (frame) => {
  const strip = document.querySelector("#overview");
  if (!strip) return;
  let mark = strip.querySelector(".viewport");
  if (!mark) {
    mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    mark.setAttribute("class", "viewport");
    mark.setAttribute("width", strip.getAttribute("width"));
    strip.append(mark);
  }
  const scale = Number(strip.getAttribute("height")) / frame.scrollHeight;
  mark.setAttribute("y", String(frame.scrollTop * scale));
  mark.setAttribute("height", String(Math.max(frame.clientHeight * scale, 2)));
};

// A node in a hidden group cannot have the focus, so its group is shown first.
const reveal = (item) => {
  const chunk = tree.chunks.find((each) => each.group === item.parentNode);
  if (chunk && chunk.hidden) {
    chunk.hidden = false;
    chunk.group.setAttribute("data-near", "");
  }
};

const focusItem = (at) => {
  const item = allItems()[at];
  if (!item) return false;
  setCurrent(item);
  reveal(item);
  item.focus({ preventScroll: true });
  scrollTo(item);
  clearTimeout(tree.timer);
  tree.timer = setTimeout(() => {
    tree.timer = 0;
    select(item);
  }, 120);
  return true;
};

const scrollTo = (item) => {
  const frame = document.querySelector("#tree-scroll");
  const box = item.firstElementChild.getBoundingClientRect();
  const view = frame.getBoundingClientRect();
  const margin = 60;
  if (box.top < view.top + margin) frame.scrollTop -= view.top + margin - box.top;
  else if (box.bottom > view.bottom - margin) frame.scrollTop += box.bottom - view.bottom + margin;
  if (box.left < view.left + margin) frame.scrollLeft -= view.left + margin - box.left;
  else if (box.right > view.right - 2 * margin)
    frame.scrollLeft += box.right - view.right + 2 * margin;
};

// A folded glyph is selected by unfolding it, which draws the tree again.
const select = (item) => {
  if (isFolded(item)) return;
  setSelected(item);
  const url = carry(item.getAttribute("href"));
  url.hash = "";
  load(url);
};

const load = async (url) => {
  if (tree.request) tree.request.abort();
  const request = new AbortController();
  tree.request = request;
  try {
    const response = await fetch(url, {
      headers: { "HX-Request": "true" },
      signal: request.signal,
    });
    if (!response.ok) throw new Error(String(response.status));
    const text = await response.text();
    history.replaceState(null, "", url);
    swapPane(text);
  } catch (error) {
    if (error.name !== "AbortError") location.assign(url);
  } finally {
    if (tree.request === request) tree.request = null;
  }
};

const swapPane = (text) => {
  const pane = document.querySelector("#pane");
  const active = pane.contains(document.activeElement) ? document.activeElement : null;
  const key = active ? active.getAttribute("data-key") : null;
  const part = new DOMParser().parseFromString(text, "text/html").querySelector("#pane");
  if (!part) return;
  pane.replaceWith(part);
  // The control that was used keeps the focus, in the new pane.
  const again = key ? part.querySelector(`[data-key="${CSS.escape(key)}"]`) : null;
  if (again) again.focus();
};

const focused = () => allItems().indexOf(tree.current);

const parentOf = (at) => {
  let above = at - 1;
  while (above >= 0 && levelAt(above) >= levelAt(at)) above -= 1;
  return above;
};

const siblingOf = (at, step) => {
  for (let next = at + step; next >= 0 && next < allItems().length; next += step) {
    if (levelAt(next) < levelAt(at)) return -1;
    if (levelAt(next) === levelAt(at)) return next;
  }
  return -1;
};

const childOf = (at) => (levelAt(at + 1) > levelAt(at) ? at + 1 : -1);

const treeKeys = {
  j: () => focusItem(focused() + 1),
  k: () => focusItem(focused() - 1),
  l: () => focusItem(childOf(focused())),
  h: () => focusItem(parentOf(focused())),
  J: () => focusItem(siblingOf(focused(), 1)),
  K: () => focusItem(siblingOf(focused(), -1)),
  o: () => {
    if (isFolded(tree.current)) {
      location.assign(carry(tree.current.getAttribute("href")));
      return true;
    }
    const control = document.querySelector('#pane [data-key="o"]');
    if (control) control.click();
    return Boolean(control);
  },
};

// The keys of the tree pattern work while a node has the focus.
const arrows = {
  ArrowDown: treeKeys.j,
  ArrowUp: treeKeys.k,
  ArrowRight: treeKeys.l,
  ArrowLeft: treeKeys.h,
  Home: () => focusItem(0),
  End: () => focusItem(allItems().length - 1),
  " ": () => select(tree.current),
};

document.addEventListener(
  "keydown",
  (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    if (!tree.current || document.querySelector("dialog[open]")) return;
    const isInTree = isItem(document.activeElement);
    let action = isInTree ? arrows[event.key] : undefined;
    if (!action && document.documentElement.dataset.keys !== "off") {
      const isTyping = /^(input|select|textarea)$/i.test(event.target.tagName);
      if (!isTyping) action = treeKeys[event.key];
    }
    if (!action) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    action();
  },
  true,
);

const nearItem = (event) => {
  for (const [x, y] of [[0, 0], [0, -7], [7, 0], [0, 7], [-7, 0], [6, -6], [6, 6], [-6, 6], [-6, -6]]) {
    const found = document.elementFromPoint(event.clientX + x, event.clientY + y);
    const item = found && found.closest('#tree [role="treeitem"]');
    if (item) return item;
  }
  return null;
};

const onStrip = (link) => {
  focusItem(allItems().indexOf(document.getElementById(link.getAttribute("href").slice(1))));
};

const onPart = (link) => {
  const url = new URL(link.href);
  const item = itemOf(url.searchParams.get("sel"));
  if (!item || isFolded(item)) {
    // The node is inside a fold, so the tree is drawn again.
    location.assign(url);
    return;
  }
  setSelected(item);
  setCurrent(item);
  reveal(item);
  scrollTo(item);
  load(url);
};

const onNode = (item) => {
  if (isFolded(item)) location.assign(carry(item.getAttribute("href")));
  else focusItem(allItems().indexOf(item));
};

document.addEventListener("click", (event) => {
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (!tree.current) return;
  const strip = event.target.closest("#overview a");
  const part = event.target.closest("#pane a[data-part]");
  const tool = event.target.closest(".tools a");
  const item = event.target.closest("#tree") ? nearItem(event) : null;
  if (!(strip || part || tool || item)) return;
  event.preventDefault();
  if (strip) onStrip(strip);
  else if (part) onPart(part);
  else if (item) onNode(item);
  else {
    const url = carry(tool.href);
    const name = new URL(location.href).searchParams.get("sel");
    if (name !== null) url.searchParams.set("sel", name);
    location.assign(url);
  }
});

// A node that was chosen comes before a live update.
document.addEventListener("live:patch", (event) => {
  if (tree.timer || tree.request) event.preventDefault();
  tree.focus = isItem(document.activeElement) ? document.activeElement.id : null;
});

// Groups are matched by the digest of their content, or by their first node. A group without its
// content has moved, or has not changed.
const patchTree = (root, next, callbacks) => {
  const before = [...root.children].filter((each) => each.matches("[data-chunk]"));
  const byDigest = new Map(before.map((group) => [group.dataset.chunk, group]));
  const after = [...next.children].map((group) => {
    const same = byDigest.get(group.dataset.same || group.dataset.chunk);
    return { group, same };
  });
  if (after.some(({ group, same }) => group.dataset.same && !same)) {
    location.reload();
    return;
  }
  const unused = new Set(before);
  for (const { same } of after) unused.delete(same);
  const byNode = new Map([...unused].map((group) => [firstNode(group), group]));
  const groups = after.map(({ group, same }) => {
    const old = same || byNode.get(firstNode(group));
    unused.delete(old);
    if (!old) return document.importNode(group, true);
    if (!same) Idiomorph.morph(old, group, { callbacks });
    for (const name of ["data-box", "transform"]) copyAttribute(name, group, old);
    return old;
  });
  for (const group of unused) group.remove();
  let place = root.firstElementChild;
  for (const group of groups) {
    if (group === place) place = place.nextElementSibling;
    else root.insertBefore(group, place);
  }
  for (const name of ["class", "width", "height", "viewBox"])
    copyAttribute(name, next, root);
};

const firstNode = (group) => {
  const item = group.querySelector("a");
  return item ? item.id : "";
};

const copyAttribute = (name, from, to) => {
  const value = from.getAttribute(name);
  if (value === null) to.removeAttribute(name);
  else if (to.getAttribute(name) !== value) to.setAttribute(name, value);
};

document.addEventListener("live:page", ({ detail: { page, callbacks } }) => {
  const [root, next] = [treeRoot(), page.getElementById("tree")];
  if (!root || !next) return;
  patchTree(root, next, callbacks);
  copyAttribute("data-drawing", next.parentElement, root.parentElement);
});

document.addEventListener("live:patched", () => {
  const pane = document.querySelector("#pane");
  const selected = pane && itemOf(pane.dataset.node);
  if (selected) setSelected(selected);
  const current = tree.current && tree.current.id;
  readTree();
  const [again, focus] = [current, tree.focus].map((id) => id && document.getElementById(id));
  if (again) setCurrent(again);
  if (focus && focus !== document.activeElement) {
    setCurrent(focus);
    reveal(focus);
    focus.focus({ preventScroll: true });
  }
  hideOffScreen();
});

const beginTree = () => {
  readTree();
  if (!tree.current) return;
  const frame = document.querySelector("#tree-scroll");
  let isPending = false;
  const later = () => {
    if (isPending) return;
    isPending = true;
    requestAnimationFrame(() => {
      isPending = false;
      hideOffScreen();
    });
  };
  frame.addEventListener("scroll", later, { passive: true });
  addEventListener("resize", later, { passive: true });
  reveal(tree.current);
  scrollTo(tree.current);
  hideOffScreen();
};

beginTree();
