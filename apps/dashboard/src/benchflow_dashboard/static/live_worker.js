// The stream of live events: one for a browser. A shared worker passes the events on to the tabs.
// A browser without shared workers loads this file into the page, and each page has a stream.
"use strict";

class LiveStream {
  static retryMs = [500, 1000, 2000, 5000];
  // A tab that crashed says nothing more. A browser lets hidden tabs speak once a minute.
  static silentMs = 200_000;

  constructor() {
    this.tabs = new Map(); // by port: what the tab wants, and when it spoke last
    this.source = null;
    this.opened = { topics: new Set(), rollouts: new Set() };
    this.versions = {}; // by topic
    this.rollouts = {}; // by id: the last seq and the stamp
    this.state = { event: "state", state: "connecting", since: Date.now() };
    this.failures = 0;
    this.timer = 0;
  }

  watch(port, want) {
    this.tabs.set(port, { want, seen: Date.now() });
    for (const [id, seq] of Object.entries(want.rollouts)) {
      this.rollouts[id] ||= { seq, stamp: null };
    }
    port.postMessage(this.state);
    const isOpen =
      this.source &&
      want.topics.every((topic) => this.opened.topics.has(topic)) &&
      Object.keys(want.rollouts).every((id) => this.opened.rollouts.has(id));
    if (!isOpen) this.later(20);
    else port.postMessage({ event: "snapshot", data: this.snapshot() });
  }

  leave(port) {
    this.tabs.delete(port);
    if (!this.tabs.size) this.close();
  }

  close() {
    clearTimeout(this.timer);
    if (this.source) this.source.close();
    this.source = null;
  }

  later(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), ms);
  }

  // A new connection continues after the last event of the one before.
  open() {
    this.close();
    this.dropSilent();
    if (!this.tabs.size) return;
    const wants = [...this.tabs.values()].map((tab) => tab.want);
    const topics = [...new Set(wants.flatMap((want) => want.topics))].sort();
    const ids = [...new Set(wants.flatMap((want) => Object.keys(want.rollouts)))].slice(-32);
    if (!topics.length && !ids.length) return;
    this.opened = { topics: new Set(topics), rollouts: new Set(ids) };
    this.rollouts = Object.fromEntries(ids.map((id) => [id, this.rollouts[id]]));
    const query = [...topics.map((topic) => ["on", topic]), ...ids.map((id) => ["r", id])];
    if (ids.length) query.push(["since", ids.map((id) => this.rollouts[id].seq).join(",")]);
    const source = new EventSource(`/live?${new URLSearchParams(query)}`);
    this.source = source;
    const on = (name, action) =>
      source.addEventListener(name, (event) => {
        if (source === this.source) action(JSON.parse(event.data));
      });
    on("snapshot", (data) => this.onSnapshot(data));
    on("events", (data) => this.onEvents(data));
    on("topic", (data) => this.onTopic(data));
    on("end", () => this.end());
    source.onerror = () => {
      if (source === this.source) this.onError(source);
    };
  }

  onSnapshot(data) {
    this.failures = 0;
    Object.assign(this.versions, data.topics);
    for (const [id, known] of Object.entries(data.rollouts)) {
      if (known && id in this.rollouts) this.rollouts[id] = known;
    }
    this.setState("live");
    this.send({ event: "snapshot", data });
  }

  onEvents(data) {
    const known = this.rollouts[data.rollout];
    if (!known || (data.events.length && data.last <= known.seq)) return;
    known.seq = data.last;
    known.stamp = data.stamp;
    this.send({ event: "events", data });
  }

  onTopic(data) {
    this.versions[data.topic] = data.version;
    this.send({ event: "topic", data });
  }

  // The session is over. A tab that is loaded after a login begins again.
  end() {
    this.close();
    this.setState("ended");
  }

  // A cut connection is opened again by the browser. After a refusal it gives up.
  async onError(source) {
    this.setState("away");
    if (source.readyState !== EventSource.CLOSED) return;
    const wait = LiveStream.retryMs[Math.min(this.failures, LiveStream.retryMs.length - 1)];
    this.failures += 1;
    const status = await this.statusOf(source.url);
    if (source !== this.source) return;
    if (status === 401) this.end();
    else this.later(wait);
  }

  async statusOf(url) {
    const abort = new AbortController();
    try {
      return (await fetch(url, { signal: abort.signal, redirect: "manual" })).status;
    } catch {
      return 0;
    } finally {
      abort.abort();
    }
  }

  setState(state) {
    if (this.state.state === state) return;
    this.state = { event: "state", state, since: Date.now() };
    this.send(this.state);
  }

  snapshot() {
    return { topics: this.versions, rollouts: this.rollouts };
  }

  send(message) {
    for (const port of this.tabs.keys()) port.postMessage(message);
  }

  dropSilent() {
    const oldest = Date.now() - LiveStream.silentMs;
    for (const [port, tab] of this.tabs) if (tab.seen < oldest) this.tabs.delete(port);
  }
}

if (typeof SharedWorkerGlobalScope !== "undefined") {
  const stream = new LiveStream();
  self.onconnect = (event) => {
    const [port] = event.ports;
    port.onmessage = ({ data }) => {
      if (data === null) stream.leave(port);
      else stream.watch(port, data);
    };
  };
  // A stream without a reader is closed, and a stream of fewer tabs asks for less.
  setInterval(() => {
    const before = stream.tabs.size;
    stream.dropSilent();
    if (!stream.tabs.size) stream.close();
    else if (stream.tabs.size < before) stream.later(0);
  }, 60_000);
}
