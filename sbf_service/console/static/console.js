"use strict";
// Live pages: an event from SBF reports that the page has changed, and htmx then reads the changed part. The script
// closes the connection of a hidden page, because a browser opens only six connections to a server with HTTP/1.1.
(() => {
  const live = document.getElementById("live");
  if (!live || !window.EventSource || !window.htmx) return;
  const state = document.getElementById("live-state");
  const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";
  const FIRST_RETRY_MS = 3000, LONGEST_RETRY_MS = 30000;
  const SILENCE_MS = 45000; // SBF sends an event at least every 15 seconds
  const LEAVE_MS = 20000; // if the page is still shown after this time, the browser did not leave the page
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

  // Changes during an interruption caused no event, so read the page again.
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
    const time = `${new Date().toISOString().slice(0, 19).replace("T", " ")} UTC`; // all times of the console are in UTC
    show(`The connection to SBF was lost at ${time}. This page may be out of date. It updates by itself when SBF answers.`);
  }

  // SBF limits the streams of a user. Try again later, because the user may close another page.
  function full(event) {
    lost = true; // read the page again when it gets a stream
    show(`You have ${event.data} other pages open that show changes, which is the limit. This page shows no changes until you close one of them.`);
    close();
    retry = setTimeout(open, LONGEST_RETRY_MS * (0.75 + Math.random() / 2));
  }

  // While the browser loads another page, do not reload: the reload would cancel the navigation, for example a logout.
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
    source = new EventSource(content().dataset.events); // the address contains the version of the shown content
    source.addEventListener("ready", connected);
    source.addEventListener("alive", hear);
    source.addEventListener("changed", () => { hear(); update(); });
    source.addEventListener("end", reload);
    source.addEventListener("full", full);
    source.addEventListener("error", () => {
      disconnected();
      if (source && source.readyState === EventSource.CLOSED) openLater();
    });
  }

  // The browser reconnects by itself after a broken connection, but not after an error answer, for example of a proxy
  // while SBF restarts. Each page waits for a random time, so that a thousand pages do not reconnect at the same time.
  function openLater() {
    close();
    update(); // if the session has ended, the answer leads to the login page
    retry = setTimeout(open, pause * (0.75 + Math.random() / 2));
    pause = Math.min(2 * pause, LONGEST_RETRY_MS);
  }

  function close() {
    if (source) source.close();
    source = null;
    clearTimeout(retry);
  }

  // A connection can break without an event, for example while a laptop sleeps.
  setInterval(() => {
    if (source && Date.now() - heard > SILENCE_MS) {
      disconnected();
      openLater();
    }
  }, SILENCE_MS / 3);

  document.addEventListener("htmx:afterRequest", (event) => {
    const { successful, xhr } = event.detail;
    if (successful) return;
    if (xhr && xhr.status >= 400 && xhr.status < 500 && xhr.status !== 429) reload(); // the reload shows an error page
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
  window.addEventListener("pageshow", (event) => { // the browser shows a page from its cache again
    if (event.persisted) { leaving = false; open(); update(); }
  });

  // After the new part of the page is inserted, restore the focus and the scroll positions. Find the focused element by
  // its description, because the new part can have more or fewer elements.
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
