// The console's script. Every page works without it. It sends forms and follows links in place, swaps what has changed, listens to
// live events, counts time down, and has the keys. It makes no HTML from text: the browser parses pages that the daemon made.
'use strict';
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const REST_MS = 700; // after the question changed, keys and clicks wait for this long: a double click may take 500 ms
  const REFRESH_MS = 200; // at most one refresh in this time
  let rest = 0;
  let asking = false;

  // Lets keys and buttons rest; the page looks so meanwhile.
  const pause = () => {
    rest = performance.now() + REST_MS;
    document.documentElement.setAttribute('data-rest', '');
    clearTimeout(pause.timer);
    pause.timer = setTimeout(() => document.documentElement.removeAttribute('data-rest'), REST_MS);
  };

  // --- Pages ---

  // Asks for a page, which the browser parses as a document of its own: scripts in it would not run.
  const ask = (method, url, body) => new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.open(method, url);
    request.responseType = 'document';
    request.timeout = 60_000;
    if (body) request.setRequestHeader('Content-Type', 'application/x-www-form-urlencoded');
    request.onload = () => {
      const page = request.response;
      if (page && one('#main', page)) done({ page, url: request.responseURL, status: request.status });
      else failed(`The daemon answered with ${request.status}. Try again shortly.`);
    };
    request.onerror = request.ontimeout = () => failed('The daemon does not answer.');
    request.send(body || null);
  });

  const toast = (text) => {
    const place = one('#toast');
    place.textContent = text;
    clearTimeout(toast.timer);
    toast.timer = setTimeout(() => { place.textContent = ''; }, 6_000);
  };

  const isField = (place) => place?.matches('textarea, select, input:not([type="checkbox"])');

  // Puts one part in the place of another, with its scroll position, marks, focus, and what was typed if that is for the same.
  const replace = (old, fresh, isSame) => {
    const focused = old.contains(document.activeElement) && document.activeElement.id;
    const marked = new Set(all('input[name="pick"]:checked', old).map((box) => box.value));
    const typed = all('input[id]', old).filter((field) => isSame && isField(field) && field.value !== field.defaultValue);
    const top = old.scrollTop;
    const node = document.adoptNode(fresh);
    old.replaceWith(node);
    node.scrollTop = top;
    for (const box of all('input[name="pick"]', node)) box.checked = marked.has(box.value);
    for (const { id, value } of typed) {
      const field = document.getElementById(id);
      if (field) field.value = value;
    }
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  // Shows a page. Where both have the same parts, only those that differ are swapped. A live refresh leaves a part alone that is
  // of the same version or in which somebody types: the next letter would be a key.
  const show = (page, { live = false, posted = false } = {}) => {
    const parts = all('[data-part]');
    const fresh = new Map(all('[data-part]', page).map((part) => [part.id, part]));
    if (parts.length && parts.length === fresh.size && parts.every((part) => fresh.has(part.id))) {
      one('#main').firstElementChild.className = one('#main', page).firstElementChild.className;
      const field = document.activeElement;
      for (const part of parts) {
        if (live && part.hasAttribute('data-keep')) continue;
        if (live && isField(field) && part.contains(field)) {
          field.addEventListener('blur', () => refresh(), { once: true });
          continue;
        }
        const next = fresh.get(part.id);
        const same = part.dataset.version === next.dataset.version;
        if (part.isEqualNode(next) || (live && same && part.dataset.version)) continue;
        if (part.dataset.version && !same) pause();
        replace(part, next, same && !posted);
        if (!same) document.getElementById(part.id).scrollTop = 0;
      }
    } else {
      replace(one('#main'), one('#main', page), false);
      pause();
    }
    document.title = page.title;
    all('.bar nav a').forEach((link, at) => {
      const now = all('.bar nav a', page)[at]?.getAttribute('aria-current');
      if (now) link.setAttribute('aria-current', now); else link.removeAttribute('aria-current');
    });
    begin();
  };

  const visit = async (url, { method = 'GET', body = null, keep = false } = {}) => {
    if (asking) return;
    asking = true;
    document.documentElement.setAttribute('aria-busy', 'true');
    try {
      const answer = await ask(method, url, body);
      if (new URL(answer.url).pathname === '/console/login') return void location.assign(answer.url);
      const posted = method === 'POST';
      // A form that is answered in place has no page of its own: a reload asks for the one that it is on.
      const isInPlace = posted && answer.url === new URL(url, location.href).href;
      if (!keep && !isInPlace && answer.url !== location.href) history.pushState(null, '', answer.url);
      refreshed = performance.now();
      show(answer.page, { posted });
      if (innerWidth < 900 && !keep) scrollTo(0, 0);
    } catch (why) {
      toast(String(why));
    } finally {
      asking = false;
      document.documentElement.removeAttribute('aria-busy');
    }
  };

  document.addEventListener('click', (event) => {
    const dialog = event.target.closest('[data-dialog]');
    if (dialog) return void document.getElementById(dialog.dataset.dialog).showModal();
    const link = event.target.closest('a[href]');
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.origin !== location.origin || link.target || link.hasAttribute('download') || link.closest('[data-plain]')) return;
    if (link.hash && link.pathname === location.pathname) return;
    if (link.pathname !== '/' && !link.pathname.startsWith('/console/')) return;
    event.preventDefault();
    visit(link.href);
  });

  document.addEventListener('submit', (event) => {
    const form = event.target;
    if (form.closest('[data-plain]') || form.method === 'dialog') return;
    event.preventDefault();
    // A click that meant the question before does nothing, as a key does.
    if (form.method === 'post' && (asking || performance.now() < rest)) return;
    const body = new URLSearchParams(new FormData(form, event.submitter));
    const action = event.submitter?.getAttribute('formaction') || form.getAttribute('action') || location.href;
    if (form.method === 'get') visit(`${action.split('?')[0]}?${body}`);
    else visit(action, { method: 'POST', body: body.toString() });
  });

  addEventListener('popstate', () => { if (asking) location.reload(); else visit(location.href, { keep: true }); });

  // --- Live events: the visible window listens, since a browser has few connections for one host. ---

  let source = null;
  let refreshed = performance.now();
  let due = null;
  let again = null;
  let wait = 2_000;

  // Asks for this page again, at the earliest so long after the last time, and for one at a time.
  const refresh = (rest_ms = REFRESH_MS) => {
    if (document.hidden || !one('[data-part]')) return;
    if (due) { again = rest_ms; return; }
    due = setTimeout(async () => {
      const at = location.href;
      refreshed = performance.now();
      try {
        if (asking) again = rest_ms;
        else {
          const answer = await ask('GET', at, null);
          if (new URL(answer.url).pathname === '/console/login') return void location.assign(answer.url);
          // Somebody may have gone on meanwhile.
          if (asking || location.href !== at) again = rest_ms;
          else show(answer.page, { live: true });
        }
      } catch {
        // The stream reconnects, and then asks again.
      }
      const more = again;
      due = again = null;
      if (more) refresh(more);
    }, Math.max(0, refreshed + rest_ms - performance.now()));
  };

  const state = (word, text) => {
    const place = one('#link');
    place.className = `link ${word}`;
    place.textContent = text;
  };

  const listen = () => {
    if (source || document.hidden || !one('#link')) return;
    source = new EventSource('/console/stream');
    let isFirst = !listen.begun;
    source.onopen = () => {
      state('live', 'Live');
      wait = 2_000;
      // What happened meanwhile is not told again.
      if (!isFirst) refresh();
      [isFirst, listen.begun] = [false, true];
    };
    source.onerror = () => {
      state('off', 'Not live');
      if (source.readyState !== EventSource.CLOSED) return;
      source = null;
      setTimeout(() => { listen(); refresh(); }, wait);
      wait = Math.min(2 * wait, 60_000);
    };
    for (const name of ['action_approval_request', 'action_approval_result']) {
      source.addEventListener(name, () => { if (one('#queue')) refresh(); });
    }
    // What ends changes the list of actions, and the inbox only if it told of that one.
    source.addEventListener('action_completed', ({ data }) => {
      const awaited = one('[data-awaits]')?.dataset.awaits;
      if (awaited === '*') refresh(1_000);
      else if (awaited && JSON.parse(data).id === awaited) refresh();
    });
  };

  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) return listen();
    source?.close();
    source = null;
  });

  // --- Time: `data-left` is in seconds from when the part came. ---

  const span = (seconds) => {
    const [d, h, min, s] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60, seconds % 60];
    if (d) return `${d} d ${h} h`;
    if (h) return `${h} h ${min} min`;
    return min ? `${min} min ${s} s` : `${s} s`;
  };

  const tick = () => {
    for (const place of all('[data-left]')) {
      place.ends ??= performance.now() + 1000 * Number(place.dataset.left);
      const left = Math.max(0, Math.ceil((place.ends - performance.now()) / 1000));
      place.textContent = left ? span(left) : 'expired';
      place.classList.toggle('soon', left < 60);
      if (left) continue;
      const whole = place.closest('[data-expires]');
      whole?.classList.add('expired');
      all('form button, input', whole ?? place).forEach((field) => { field.disabled = true; });
    }
  };

  // --- Keys ---

  const move = (by) => {
    const rows = all('[data-row]');
    const at = rows.findIndex((row) => row.getAttribute('aria-current'));
    const next = rows[at < 0 ? 0 : at + by];
    if (!next) return;
    next.scrollIntoView({ block: 'nearest' });
    visit(next.href);
  };

  document.addEventListener('keydown', (event) => {
    const { key, target } = event;
    if (event.metaKey || event.ctrlKey || event.altKey || one('dialog[open]')) return;
    if (key === 'Escape') {
      one('.drop[open]')?.removeAttribute('open');
      return void target.blur();
    }
    if (target.matches('textarea, select, input:not([type="checkbox"])')) return;
    if (key === 'j' || key === 'k') return void move(key === 'j' ? 1 : -1);
    const place = one(`[data-key="${CSS.escape(key)}"]:not(:disabled)`);
    // A key that is held down, meant the question before, or is for what the screen does not show, does nothing.
    if (!place || event.repeat || asking || performance.now() < rest) return;
    if (key !== '?' && key !== 'x' && !place.getClientRects().length) return;
    event.preventDefault();
    if (place.tagName === 'DETAILS') {
      place.open = true;
      one('input:not([type="hidden"]), textarea, select', place)?.focus();
    } else place.click();
  });

  // --- Completion: a browser offers whole values, so each word is offered with what stands before it. ---

  document.addEventListener('input', ({ target }) => {
    if (!target.matches('[data-words]')) return;
    const before = target.value.slice(0, target.value.lastIndexOf(' ') + 1);
    for (const option of target.list.options) {
      option.dataset.word ??= option.value;
      option.value = before + option.dataset.word;
    }
  });

  // --- After each change of the page ---

  const begin = () => {
    // On a wide screen the inbox shows its first question; its own address stays with it when others come.
    const question = one('#question[data-url]');
    if (question && location.pathname === '/' && innerWidth >= 900) {
      history.replaceState(null, '', question.dataset.url + location.search);
    }
    all('[data-key="?"]').forEach((button) => { button.hidden = false; });
    one('[autofocus]')?.focus();
    tick();
  };

  begin();
  listen();
  setInterval(tick, 1000);
  const every = () => Number(one('[data-refresh]')?.dataset.refresh || 0);
  setInterval(() => { if (every() && performance.now() - refreshed > 1000 * every()) refresh(); }, 1000);
})();
