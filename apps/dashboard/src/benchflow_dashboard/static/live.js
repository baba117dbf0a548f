// Keeps the page up to date: an event of the stream makes the page read itself again, and only what
// differs is changed. Focus, scroll, selection and the fields of forms stay.
"use strict";

const live = {
  page: document.querySelector("main[data-live]"),
  port: null,
  state: "connecting",
  since: 0,
  isStale: false,
  isBusy: false,
  isMissed: false, // whether the last attempt to read the page failed
  took: 0,
  readAt: performance.now(),
  timer: 0,
};

const hasWorkers = typeof SharedWorker !== "undefined";

const wanted = () => {
  const { live: topic, rollout, seq } = live.page.dataset;
  return {
    topics: topic ? [topic] : [],
    rollouts: rollout ? { [rollout]: Number(seq) } : {},
  };
};

// Whether a message is news for what the page shows now.
const isNews = ({ event, data }) => {
  const { live: topic, version, rollout, seq, stamp } = live.page.dataset;
  const isNewer = (state) => state && (state.seq > Number(seq) || state.stamp !== stamp);
  if (event === "topic") return topic === data.topic && version !== data.version;
  if (event === "events") return isNewer({ seq: data.last, stamp: data.stamp });
  const known = topic && data.topics[topic];
  return (known && known !== version) || isNewer(data.rollouts[rollout]);
};

const onMessage = (message) => {
  if (message.event === "state") {
    live.state = message.state;
    live.since = message.since;
    showState();
    return;
  }
  if (message.event === "events") {
    if (message.data.rollout !== live.page.dataset.rollout) return;
    document.dispatchEvent(new CustomEvent("live:events", { detail: message.data }));
  }
  if (isNews(message)) refresh();
};

const showState = () => {
  const place = document.querySelector("#live-state");
  const at = (moment) => new Date(moment).toLocaleTimeString();
  const words = {
    connecting: "",
    live: live.isMissed ? `not live since ${at(live.missedAt)}, retrying` : "live",
    away: `not live since ${at(live.since)}, retrying`,
    ended: "logged out",
  };
  place.textContent = words[live.state];
  place.dataset.state = live.state === "live" && live.isMissed ? "away" : live.state;
  if (live.state === "ended") {
    const link = document.createElement("a");
    link.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = "log in";
    place.append(" · ", link);
  }
};

// The page rests as long as the last read took, and is not read while nobody sees it.
const refresh = (wait = 0) => {
  live.isStale = true;
  if (live.isBusy || document.hidden || live.state === "ended") return;
  clearTimeout(live.timer);
  const rest = Math.max(live.took, Number(live.page.dataset.rest) * 1000);
  const next = live.readAt + rest - performance.now();
  live.timer = setTimeout(readPage, Math.max(wait, next, 0));
};

// The server leaves out the groups of a tree, and the list, that this page has.
const shownParts = () => {
  const tree = document.querySelector("[data-drawing]");
  return tree ? { "Live-Drawing": tree.dataset.drawing } : {};
};

const readPage = async () => {
  if (live.isBusy) return;
  live.isBusy = true;
  live.isStale = false;
  const began = performance.now();
  const here = location.href;
  let wait = 0;
  try {
    const signal = AbortSignal.timeout(20_000);
    const response = await fetch(here, { headers: shownParts(), signal });
    if (response.redirected && new URL(response.url).pathname === "/login") live.state = "ended";
    else if (!response.ok) throw new Error(String(response.status));
    else {
      const text = await response.text();
      // The reader may have chosen another node in the meantime.
      const event = new CustomEvent("live:patch", { cancelable: true });
      if (here === location.href && document.dispatchEvent(event)) patch(text);
      else [live.isStale, wait] = [true, 100];
    }
    live.isMissed = false;
  } catch {
    if (!live.isMissed) live.missedAt = Date.now();
    [live.isMissed, live.isStale, wait] = [true, true, 2000];
  }
  live.readAt = performance.now();
  live.took = live.readAt - began;
  live.isBusy = false;
  showState();
  if (live.isStale) refresh(wait);
};

const toggled = new WeakSet();
document.addEventListener("click", ({ target }) => {
  const summary = target.closest("summary");
  if (summary) toggled.add(summary.parentElement);
});

// What the reader has done stays: a section that was opened, a field that was filled in, the
// current node.
const isOfReader = (name, element) =>
  (name === "open" && toggled.has(element)) ||
  (/^(value|checked)$/.test(name) && element.matches("input:not([type=hidden])")) ||
  (name === "tabindex" && element.getAttribute("role") === "treeitem") ||
  (name === "data-near" && element.localName === "g");

// A list without its content has not changed.
const callbacks = {
  beforeNodeMorphed: (old, next) =>
    !next.matches?.("ol[data-same]") && !(old.isEqualNode && old.isEqualNode(next)),
  beforeAttributeUpdated: (name, element) => !isOfReader(name, element),
};

const scriptsOf = (page) => [...page.querySelectorAll("head script")].map((each) => each.src).join();

// A new option moves the others, and what the reader has chosen with them.
const changedChoices = () =>
  [...document.querySelectorAll("main select")]
    .filter((list) => [...list.options].some((each) => each.selected !== each.defaultSelected))
    .map((list) => [list, list.value]);

// Of a region with regions inside, the rest does not change, apart from its attributes.
const patchRegion = (region, next) => {
  if (!region.querySelector("[data-live-region]")) {
    Idiomorph.morph(region, next, { callbacks });
    return;
  }
  for (const { name, value } of next.attributes)
    if (region.getAttribute(name) !== value) region.setAttribute(name, value);
};

const patch = (text) => {
  const page = new DOMParser().parseFromString(text, "text/html");
  // Another kind of page, or another version of the server.
  if (scriptsOf(page) !== scriptsOf(document)) {
    location.reload();
    return;
  }
  document.dispatchEvent(new CustomEvent("live:page", { detail: { page, callbacks } }));
  const choices = changedChoices();
  for (const region of document.querySelectorAll("[data-live-region]")) {
    const next = page.getElementById(region.id);
    if (next) patchRegion(region, next);
  }
  for (const [list, value] of choices)
    if ([...list.options].some((each) => each.value === value)) list.value = value;
  document.title = page.title;
  document.dispatchEvent(new CustomEvent("live:patched"));
};

const connect = () => {
  const script = document.querySelector("[data-live-worker]").src;
  if (hasWorkers) {
    const { port } = new SharedWorker(script, { name: "live" });
    port.onmessage = ({ data }) => onMessage(data);
    live.port = {
      watch: () => port.postMessage(wanted()),
      leave: () => port.postMessage(null),
    };
  } else {
    const stream = new LiveStream();
    const port = { postMessage: (data) => queueMicrotask(() => onMessage(data)) };
    live.port = { watch: () => stream.watch(port, wanted()), leave: () => stream.leave(port) };
  }
  if (hasWorkers || !document.hidden) live.port.watch();
};

const onVisible = () => {
  // Without a shared worker, a hidden page gives its connection back.
  if (!hasWorkers && document.hidden) live.port.leave();
  else if (!hasWorkers) live.port.watch();
  if (!document.hidden && live.isStale) refresh();
};

if (live.page) {
  connect();
  document.addEventListener("visibilitychange", onVisible);
  addEventListener("pagehide", () => live.port.leave());
  addEventListener("pageshow", (event) => event.persisted && live.port.watch());
  setInterval(() => hasWorkers || !document.hidden ? live.port.watch() : undefined, 60_000);
  // The ages of a page grow without an event.
  setInterval(() => {
    const after = Number(live.page.dataset.refresh) * 1000;
    if (after && live.state === "live" && performance.now() - live.readAt > after) refresh();
  }, 1000);
}
