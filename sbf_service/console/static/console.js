"use strict";
// Live pages: an event from SBF says that the page has changed, and htmx then reads the changed part. The connection of a
// page that nobody sees is closed, because a browser opens only six connections to a server with HTTP/1.1.
(() => {
  const live = document.getElementById("live");
  if (!live || !window.EventSource || !window.htmx) return;
  const state = document.getElementById("live-state");
  const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";
  let source = null;

  function show(text) {
    state.hidden = false;
    if (state.textContent !== text) state.textContent = text;
  }

  function update() {
    htmx.trigger(live, "changed");
  }

  function open() {
    if (source) return;
    source = new EventSource(live.dataset.events);
    source.addEventListener("ready", () => show("Shows changes as they happen"));
    source.addEventListener("changed", update);
    source.addEventListener("end", () => location.reload());
    source.addEventListener("error", () => {
      show("The connection to SBF is lost; the browser tries again");
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        update(); // an ended session leads to the login page
      }
    });
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
    } else {
      open();
      update();
    }
  });
  window.addEventListener("pagehide", close);

  // A new part of the page keeps the focus and the scroll positions of the former part. The focused thing is found again
  // by its description, because other things may have appeared or vanished.
  const ATTRIBUTES = ["id", "href", "name", "aria-label"];
  const describe = (thing) => [thing.tagName, ...ATTRIBUTES.map((name) => thing.getAttribute(name))].join("|");
  const content = () => document.getElementById("live-content");
  const find = (description) => [...content().querySelectorAll(FOCUSABLE)].filter((one) => describe(one) === description);
  let focused = null;
  let scrolled = [];
  document.addEventListener("htmx:beforeSwap", () => {
    const active = document.activeElement;
    const description = describe(active);
    focused = content().contains(active) ? { description, index: find(description).indexOf(active) } : null;
    scrolled = [...content().querySelectorAll(".scroll")].map((part) => part.scrollLeft);
  });
  document.addEventListener("htmx:afterSwap", () => {
    content().querySelectorAll(".scroll").forEach((part, index) => { part.scrollLeft = scrolled[index] || 0; });
    if (focused) find(focused.description)[focused.index]?.focus({ preventScroll: true });
  });

  if (!document.hidden) open();
})();
