// Follows a page: reads it again at each interval, and changes what differs. Open parts, focus and scrolling stay.
"use strict";
(() => {
  const body = document.body;
  const status = document.getElementById("status");
  const interval = Math.max(1, Number(body.dataset.interval)) * 1000;
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  let answered = Date.now();
  let collected = answered;
  let reading = false;
  let timer;

  const told = (time) => {
    const moment = new Date(time);
    const sameDay = moment.toDateString() === new Date().toDateString();
    return sameDay ? clock.format(moment) : moment.toLocaleString();
  };

  const localize = (page) => {
    for (const time of page.querySelectorAll("time[datetime]")) time.textContent = told(time.dateTime);
  };

  const say = (words) => {
    if (status.textContent !== words) status.textContent = words;
    body.classList.toggle("stale", words !== "");
  };

  // Makes `now` equal to `next`, and keeps the elements that both have. `data-key` tells an element from siblings of its kind.
  const change = (now, next) => {
    if (now.isEqualNode(next)) return;
    if (now.nodeName !== next.nodeName) {
      now.replaceWith(next);
    } else if (now.nodeType !== Node.ELEMENT_NODE) {
      now.nodeValue = next.nodeValue;
    } else {
      // Whether a part is open is the reader's choice.
      for (const { name } of [...now.attributes]) {
        if (name !== "open" && !next.hasAttribute(name)) now.removeAttribute(name);
      }
      for (const { name, value } of next.attributes) {
        if (name !== "open" && now.getAttribute(name) !== value) now.setAttribute(name, value);
      }
      changeChildren(now, next);
    }
  };

  const changeChildren = (now, next) => {
    const keyed = new Map();
    for (const child of now.children) if (child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
    let at = now.firstChild;
    const withoutKey = (name) => {
      let found = at;
      while (found && (found.nodeName !== name || found.dataset?.key !== undefined)) found = found.nextSibling;
      return found;
    };
    for (const child of [...next.childNodes]) {
      const key = child.dataset?.key;
      const same = key === undefined ? withoutKey(child.nodeName) : keyed.get(key);
      keyed.delete(key);
      if (same && same === at) at = at.nextSibling;
      else now.insertBefore(same ?? child, at);
      if (same) change(same, child);
    }
    while (at) {
      const following = at.nextSibling;
      at.remove();
      at = following;
    }
  };

  const show = (page) => {
    const style = (of) => of.querySelector("link[rel=stylesheet]").getAttribute("href");
    if (style(page) !== style(document)) return location.reload();
    localize(page);
    const focused = document.activeElement;
    const parts = page.querySelectorAll("[data-live]");
    document.querySelectorAll("[data-live]").forEach((part, index) => change(part, parts[index]));
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    document.title = page.title;
    if (body.dataset.sequence !== page.body.dataset.sequence) collected = answered;
    body.dataset.sequence = page.body.dataset.sequence;
  };

  const read = async () => {
    const patience = AbortSignal.timeout(Math.max(interval, 10_000));
    const answer = await fetch(location.href, { cache: "no-store", signal: patience });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (page.body.dataset.sequence === undefined) {
      return say(`the server answers ${answer.ok ? "with another page" : answer.status} since ${told(answered)}`);
    }
    answered = Date.now();
    show(page);
    const silent = answered - collected > 3 * interval + 5000;
    const asOf = document.querySelector(".facts time[datetime]");
    say(silent ? `no new values since ${told(asOf?.dateTime ?? collected)}` : "");
  };

  const follow = async () => {
    clearTimeout(timer);
    if (reading || document.hidden) return;
    reading = true;
    try {
      await read();
    } catch {
      say(`no answer since ${told(answered)}`);
    }
    reading = false;
    timer = setTimeout(follow, interval);
  };

  localize(document);
  document.addEventListener("visibilitychange", follow);
  timer = setTimeout(follow, interval);
})();
