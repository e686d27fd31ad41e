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

  // Puts one part in the place of another, with its scroll position, marks and focus.
  const replace = (old, fresh) => {
    const focused = old.contains(document.activeElement) && document.activeElement.id;
    const marked = new Set(all('input[name="pick"]:checked', old).map((box) => box.value));
    const top = old.scrollTop;
    const node = document.adoptNode(fresh);
    old.replaceWith(node);
    node.scrollTop = top;
    for (const box of all('input[name="pick"]', node)) box.checked = marked.has(box.value);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  // Shows a page. Where both have the same parts, only those that differ are swapped. A live refresh leaves a part alone that is
  // of the same version, since somebody may be typing in it.
  const show = (page, live) => {
    const parts = all('[data-part]');
    const fresh = new Map(all('[data-part]', page).map((part) => [part.id, part]));
    if (parts.length && parts.length === fresh.size && parts.every((part) => fresh.has(part.id))) {
      one('#main').firstElementChild.className = one('#main', page).firstElementChild.className;
      for (const part of parts) {
        if (live && part.hasAttribute('data-keep')) continue;
        const next = fresh.get(part.id);
        const same = part.dataset.version === next.dataset.version;
        if (part.isEqualNode(next) || (live && same && part.dataset.version)) continue;
        if (part.dataset.version && !same) rest = performance.now() + REST_MS;
        replace(part, next);
        if (!same) document.getElementById(part.id).scrollTop = 0;
      }
    } else {
      replace(one('#main'), one('#main', page));
      rest = performance.now() + REST_MS;
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
      if (!keep && answer.url !== location.href) history.pushState(null, '', answer.url);
      show(answer.page, false);
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

  addEventListener('popstate', () => visit(location.href, { keep: true }));

  // --- Live events: the visible window listens, since a browser has few connections for one host. ---

  let source = null;
  let refreshed = -Infinity;
  let due = null;
  let wait = 2_000;

  const refresh = () => {
    if (due || document.hidden) return;
    due = setTimeout(async () => {
      [due, refreshed] = [null, performance.now()];
      if (asking) return void refresh();
      try {
        const answer = await ask('GET', location.href, null);
        if (new URL(answer.url).pathname === '/console/login') return void location.assign(answer.url);
        if (!asking) show(answer.page, true);
      } catch {
        // The stream reconnects, and then asks again.
      }
    }, Math.max(0, refreshed + REFRESH_MS - performance.now()));
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
    for (const name of ['action_approval_request', 'action_completed', 'action_approval_result']) {
      source.addEventListener(name, refresh);
    }
  };

  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) return listen();
    source?.close();
    source = null;
  });

  // --- Time: `data-left` is in seconds from when the part came. ---

  const span = (seconds) => {
    const [h, min, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
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
