"use strict";
// Live pages: an event from SBF says that the page has changed, and htmx then reads the changed part. The connection of a
// page that nobody sees is closed, because a browser opens only six connections to a server with HTTP/1.1.
(() => {
  const live = document.getElementById("live");
  if (!live || !window.EventSource || !window.htmx) return;
  const state = document.getElementById("live-state");
  const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";
  const FIRST_RETRY_MS = 3000, LONGEST_RETRY_MS = 30000;
  const SILENCE_MS = 45000; // SBF sends an event at least every 15 seconds
  const LEAVE_MS = 20000; // a page that is still shown after this time was not left
  let source = null;
  let retry = null;
  let pause = FIRST_RETRY_MS;
  let lost = false;
  let heard = Date.now();
  let leaving = false;

  function show(text) {
    state.hidden = false;
    state.classList.toggle("lost", lost);
    if (state.textContent !== text) state.textContent = text;
  }

  function update() {
    if (leaving) return;
    htmx.trigger(live, "changed");
  }

  function hear() {
    heard = Date.now();
  }

  // Changes during the interruption caused no event, so the page is read again. The service may still be starting then.
  function connected() {
    hear();
    pause = FIRST_RETRY_MS;
    if (lost) update();
    lost = false;
    show("Shows changes as they happen");
  }

  function disconnected() {
    if (lost) return;
    lost = true;
    const time = `${new Date().toISOString().slice(0, 19).replace("T", " ")} UTC`; // as all times of the console
    show(`The connection to SBF is lost since ${time}. This page may be out of date; it continues by itself when SBF answers.`);
  }

  // A reload would replace the page to which the reader is on the way, such as that of a logout, which ends the session.
  function reload() {
    if (!leaving) location.reload();
  }

  function leave() {
    leaving = true;
    close();
    htmx.trigger(live, "htmx:abort");
    setTimeout(() => {
      leaving = false;
      if (!document.hidden) { open(); update(); }
    }, LEAVE_MS);
  }

  function open() {
    if (source || leaving) return;
    hear();
    source = new EventSource(live.dataset.events);
    source.addEventListener("ready", connected);
    source.addEventListener("alive", hear);
    source.addEventListener("changed", () => { hear(); update(); });
    source.addEventListener("end", reload);
    source.addEventListener("error", () => {
      disconnected();
      if (source && source.readyState === EventSource.CLOSED) openLater();
    });
  }

  // The browser itself tries again after a broken connection, but not after an answer with an error, such as that of a
  // proxy while SBF restarts. Each page waits for another time, so that a thousand pages do not return at once.
  function openLater() {
    close();
    update(); // an ended session leads to the login page
    retry = setTimeout(open, pause * (0.75 + Math.random() / 2));
    pause = Math.min(2 * pause, LONGEST_RETRY_MS);
  }

  function close() {
    if (source) source.close();
    source = null;
    clearTimeout(retry);
  }

  // A connection may break without a sign, for example while a laptop sleeps.
  setInterval(() => {
    if (source && Date.now() - heard > SILENCE_MS) {
      disconnected();
      openLater();
    }
  }, SILENCE_MS / 3);

  document.addEventListener("htmx:afterRequest", (event) => {
    const { successful, xhr } = event.detail;
    if (successful) return;
    if (xhr && xhr.status >= 400 && xhr.status < 500 && xhr.status !== 429) reload(); // the error has a page
    else if (source) setTimeout(update, FIRST_RETRY_MS);
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
    } else {
      pause = FIRST_RETRY_MS;
      open();
      update();
    }
  });
  window.addEventListener("beforeunload", leave);
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { // the browser shows a page again that it had kept
    if (event.persisted) { leaving = false; open(); update(); }
  });

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
