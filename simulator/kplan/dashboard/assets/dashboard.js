// The page's own code: sliders and fields that move each other, the address, and patience with a busy server.
(() => {
  const near = (value, ends) => {
    const digits = Number(value.toExponential()[0]) < 3 ? 3 : 2; // so that each step is another number
    const rounded = ends.linear ? value : Number(value.toPrecision(digits));
    const bounded = Math.min(ends.high, Math.max(ends.low, rounded));
    return ends.whole ? Math.round(bounded) : bounded;
  };

  // `ends`: of the slider, in decades unless linear; at `none` the field is empty.
  const sync = (slider, field, ends) => {
    const same = window.dash_clientside.no_update;
    const moved = window.dash_clientside.callback_context.triggered[0].prop_id;
    if (moved.includes("-slider.")) {
      const beyond = ends.none !== null && Math.abs(slider - ends.none) < 0.125;
      return [same, beyond ? null : near(ends.linear ? slider : 10 ** slider, ends)];
    }
    const empty = field === null || field === undefined || field === "";
    if (empty) return [ends.none === null ? same : ends.none, same];
    const at = ends.linear ? field : Math.log10(field);
    return [Number.isFinite(at) ? Math.min(ends.max, Math.max(ends.min, at)) : same, same];
  };

  // Every control that is not at its default, as a query string; it becomes the address.
  const collect = (...given) => {
    const defaults = given.pop();
    nameSliders();
    const query = new URLSearchParams();
    Object.keys(defaults).forEach((name) => {
      const value = values(given)[name];
      if (value === null || value === undefined || value === "") return;
      if (String(value) !== String(defaults[name])) query.set(name, value);
    });
    const text = query.toString();
    history.replaceState(history.state, "", text ? `?${text}` : location.pathname);
    return text;
  };

  const nameSliders = () => document.querySelectorAll(".knob").forEach((knob) => {
    knob.querySelector("[role=slider]")?.setAttribute("aria-label", knob.querySelector("label").textContent);
  });

  const values = (given) => {
    const names = window.dash_clientside.callback_context.inputs_list.map((input) => input.id);
    return Object.fromEntries(names.map((name, i) => [name, given[i]]));
  };

  // A busy server says 503: the same question is asked again, later and later. Of a page, which it knows by
  // name, it answers the newest question.
  const name = Array.from(crypto.getRandomValues(new Uint32Array(4)), (word) => word.toString(16)).join("-");
  // Meanwhile the page is marked, so that the answer before is not taken for the new one.
  const ask = window.fetch.bind(window);
  let open = 0;
  const mark = (more) => {
    open += more;
    document.documentElement.toggleAttribute("data-asking", open > 0);
  };
  window.fetch = async (where, given = {}) => {
    const headers = { ...given.headers, "X-Kplan-Page": name };
    const asks = String(given.body).includes('"..answer.children');
    if (asks) mark(+1);
    try {
      for (let tried = 0; ; tried++) {
        const response = await ask(where, { ...given, headers });
        if (response.status !== 503 || tried === 8) return response;
        await new Promise((go) => setTimeout(go, 500 * (tried + 1)));
      }
    } finally {
      if (asks) mark(-1);
    }
  };

  window.dash_clientside = { ...window.dash_clientside, kplan: { sync, collect } };
})();
