// The token viewer. All text from models is set with textContent: it is data, and never becomes markup.
// The page holds one JSON element with what is small, and one gzipped binary element per response, decoded when shown.
"use strict";

(() => {
  const run = JSON.parse(document.getElementById("viewer-data").textContent);
  const K = run.teachers.length;
  const $ = (id) => document.getElementById(`viewer-${id}`);
  const state = { shown: [], response: null, weights: [], changes: [], position: 0, tallest: 0 };

  // ---- Reading a response

  function halfToNumber(bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }

  async function readResponse(index) {
    const find = () => document.getElementById(`response-${index}`);
    // An element is found when its start has been read: its end is there once another follows, or all is loaded.
    if (document.readyState === "loading" && !find()?.nextElementSibling) {
      await new Promise((loaded) => document.addEventListener("DOMContentLoaded", loaded, { once: true }));
    }
    const packed = Uint8Array.from(atob(find().textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const buffer = await new Response(stream).arrayBuffer();
    const { tokens: T, width: c } = run.responses[index];
    const P = run.policies.length;
    let at = 0;
    const take = (Type, count) => {
      const values = new Type(buffer, at, count);
      at += values.byteLength;
      return values;
    };
    // The widest first: a typed array starts at a multiple of its item's size.
    const response = { index, T, c };
    response.weights = take(Float32Array, K * T);
    response.scores = run.scored ? take(Float32Array, K * T) : null;
    response.entropy = take(Float32Array, T);
    response.positions = take(Int32Array, T);
    response.texts = take(Uint32Array, T);
    response.candidates = take(Uint32Array, T * c);
    response.logp = take(Uint16Array, P * T * c);
    response.rest = take(Uint16Array, P * T);
    return response;
  }

  // ---- The method, on what was stored

  // w_k ∝ (rho_k / mu_k)^gamma in log space; a teacher at 0 gets nothing, and where all are at 0 all get 1/K.
  function trustWeights(scores, mu, gamma) {
    const logs = scores.map((score, k) => gamma * (Math.log(score) - Math.log(mu[k])));
    const top = Math.max(...logs);
    if (top === -Infinity) return scores.map(() => 1 / scores.length);
    const powers = logs.map((log) => Math.exp(log - top));
    const total = powers.reduce((sum, power) => sum + power, 0);
    return powers.map((power) => power / total);
  }

  // The geometric mean of teachers with weights above 0 on the stored candidates; all others together count as one
  // more candidate.
  function mixedTarget(teachers, weights) {
    const logs = teachers[0].map((_, i) =>
      teachers.reduce((sum, logp, k) => sum + weights[k] * logp[i], 0));
    const top = Math.max(...logs);
    const powers = logs.map((log) => Math.exp(log - top));
    const total = powers.reduce((sum, power) => sum + power, 0);
    return powers.map((power) => power / total);
  }

  function weightsOf(response, rule, gamma) {
    const { T } = response;
    const column = (values, t) => run.teachers.map((_, k) => values[k * T + t]);
    const raw = run.teachers.map(() => 1);
    const tokens = Array.from({ length: T }, (_, t) => {
      if (rule === "uniform") return raw.map(() => 1 / K);
      if (rule === "recorded" || !run.scored) return column(response.weights, t);
      return trustWeights(column(response.scores, t), rule === "uncalibrated" || !run.mu ? raw : run.mu, gamma);
    });
    if (rule !== "response") return tokens;
    const mean = raw.map((_, k) => tokens.reduce((sum, weights) => sum + weights[k], 0) / T);
    return tokens.map(() => mean);
  }

  // The target's distribution over the stored candidates and all others; null where a teacher with weight was not asked.
  function targetOf(opinions, weights) {
    const teachers = run.teachers.map((teacher) => opinions[run.policies.indexOf(teacher)]);
    const heard = run.teachers.map((_, k) => k).filter((k) => weights[k] > 0);
    return heard.every((k) => teachers[k]) ? mixedTarget(heard.map((k) => teachers[k]), heard.map((k) => weights[k])) : null;
  }

  // The probability that the target moves from some candidates to others, at each token.
  const DIFFERS = 0.1;
  function distances(response, weights) {
    return weights.map((each, t) => {
      const opinions = run.policies.map((_, policy) => opinion(response, policy, t)), target = targetOf(opinions, each);
      return target ? target.reduce((sum, p, i) => sum + Math.abs(p - Math.exp(opinions[0][i])), 0) / 2 : 0;
    });
  }

  const movedWeight = (before, after) => before.reduce((sum, w, k) => sum + Math.abs(after[k] - w), 0) / 2;

  function opinion(response, policy, t) {
    const { T, c } = response, start = (policy * T + t) * c;
    const logp = Array.from(response.logp.subarray(start, start + c), halfToNumber);
    return [...logp, Math.log(halfToNumber(response.rest[policy * T + t]))];
  }

  // ---- Drawing

  const RARE = 0.0005; // what is less for everyone would be a row of 0.0%
  const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
  function visible(text) {
    if (text === "") return "∅";
    if (text === " ") return "␣";
    return text.replace(/\r/g, "␍").replace(/\n/g, "⏎\n").replace(/\t/g, "⇥")
      .replace(HIDDEN, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  }

  const inLine = (text) => visible(text).replace(/⏎\n/g, "⏎");
  const leading = (weights) => weights.indexOf(Math.max(...weights));
  // Six colours and five lines: no pair comes again before the thirtieth teacher.
  const colour = (k) => `var(--teacher-${k % 6})`;
  const line = (k) => ["solid", "dashed", "dotted", "double", "groove"][k % 5];
  const shade = (k, weight) => `color-mix(in srgb, ${colour(k)} ${Math.round(58 * weight)}%, transparent)`;

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function block(prefix, texts) {
    const fragment = document.createDocumentFragment();
    texts.forEach((text, t) => {
      const token = element("span", visible(text), { class: "token", "data-t": t });
      if (prefix === "token") {
        token.id = `token-${t}`;
        token.setAttribute("role", "option");
      }
      fragment.append(token);
    });
    return fragment;
  }

  function drawTokens() {
    const texts = Array.from(state.response.texts, (index) => run.texts[index]);
    $("tokens").replaceChildren(block("token", texts));
    for (const t of run.responses[$("response").value].conflicts) $("tokens").children[t].classList.add("conflict");
    const rows = run.teachers.map((teacher, k) => {
      const row = element("div", undefined, { class: "row" });
      const body = element("div", undefined, { class: "row-tokens", "data-k": k });
      body.append(block("row", texts));
      row.append(element("div", teacher, { class: "row-name", style: `--own: ${colour(k)}` }), body);
      return row;
    });
    $("rows").replaceChildren(...rows);
  }

  function drawWeights() {
    const rule = $("rule").value, gamma = Number($("gamma").value);
    $("gamma").disabled = !run.scored || rule === "uniform";
    $("gamma-value").textContent = String(Number(gamma.toPrecision(3)));
    if (!state.response) return;
    state.weights = weightsOf(state.response, rule, gamma);
    const only = $("differ").checked, far = only || state.fresh ? distances(state.response, state.weights) : [];
    state.taught = state.fresh ? state.weights.map((weights, t) => (t ? movedWeight(state.weights[t - 1], weights) * far[t] : 0)) : state.taught;
    state.fresh = false;
    state.changes = state.weights.slice(1).map((weights, t) => ({ t: t + 1, moved: movedWeight(state.weights[t], weights) }))
      .filter((change) => change.moved > 0.01 && (!only || far[change.t] >= DIFFERS)).sort((a, b) => b.moved - a.moved).slice(0, 20).sort((a, b) => a.t - b.t);
    const tokens = $("tokens").children;
    state.weights.forEach((weights, t) => {
      const k = leading(weights);
      tokens[t].style.background = shade(k, weights[k]);
      tokens[t].style.borderBottom = `3px ${line(k)} ${colour(k)}`;
      tokens[t].classList.toggle("same", only && far[t] < DIFFERS);
    });
    for (const row of $("rows").querySelectorAll(".row-tokens")) {
      const k = Number(row.dataset.k);
      state.weights.forEach((weights, t) => { row.children[t].style.background = shade(k, weights[k]); });
    }
    const moved = state.changes.length;
    $("changes").textContent = moved ? `${moved} sharpest changes` : "no change within this response";
    drawDetail(state.position);
  }

  const number = (value, digits = 3) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
  const percent = (value) => !Number.isFinite(value) ? "–" : (value >= 0.0995 ? (100 * value).toFixed(0) : (100 * value).toFixed(1)) + "%";

  function table(header, rows) {
    const made = element("table"), head = element("tr");
    head.append(...header.map((text) => element("th", text, { scope: "col" })));
    made.append(head, ...rows.map((cells) => {
      const row = element("tr");
      row.append(...cells.map((cell) => (cell instanceof Node ? cell : element("td", cell))));
      return row;
    }));
    return made;
  }

  function drawDetail(t) {
    const response = state.response, weights = state.weights[t], { T } = response;
    const text = run.texts[response.texts[t]];
    $("link").href = linkTo(t);
    $("where").textContent = `Token ${t + 1} of ${T}, position ${response.positions[t]}: “${inLine(text)}”, student's entropy ${number(response.entropy[t])}`;
    const scored = run.scored;
    $("teachers").replaceChildren(table(["teacher", ...(scored ? ["score ρ", ...(run.mu ? ["r = ρ/μ"] : [])] : []), "weight"],
      run.teachers.map((teacher, k) => {
        const score = scored ? response.scores[k * T + t] : NaN;
        const bar = element("td", number(weights[k]), { class: "bar", style: `--own: ${colour(k)}; --share: ${100 * weights[k]}%` });
        return [teacher, ...(scored ? [number(score), ...(run.mu ? [number(score / run.mu[k])] : [])] : []), bar];
      })));
    const opinions = run.policies.map((_, policy) => opinion(response, policy, t));
    const target = targetOf(opinions, weights);
    const shares = [...opinions.map((logp) => logp.map(Math.exp)), ...(target ? [target] : [])];
    const ids = response.candidates.subarray(t * response.c, (t + 1) * response.c);
    // The target too: where teachers exclude each other's favourites, what none of them likes may be likeliest.
    const rare = [...ids.keys()].filter((i) => ids[i] !== response.texts[t] && !shares.some((share) => share[i] >= RARE));
    const folded = new Set($("all").checked ? [] : rare);
    const cells = (places) => shares.map((share, column) => element("td", percent(places.reduce((sum, i) => sum + share[i], 0)),
      column === opinions.length ? { class: "target" } : {}));
    const rows = [...ids.keys()].filter((i) => !folded.has(i)).map((i) => {
      const sampled = ids[i] === response.texts[t] ? " sampled" : "";
      return [element("td", inLine(run.texts[ids[i]]), { class: `candidate${sampled}` }), ...cells([i])];
    });
    rows.push([element("td", "all others", { class: "candidate" }), ...cells([response.c, ...folded])]);
    $("rare").textContent = `(${rare.length} here)`;
    // Within a response the table never gets shorter: the page would move under the pointer, and so to another token.
    state.tallest = Math.max(state.tallest, rows.length + 1);
    $("candidates").style.setProperty("--rows", state.tallest);
    $("candidates").replaceChildren(table(["candidate", ...run.headings, ...(target ? ["target"] : [])], rows));
  }

  // ---- Moving about

  // As --case takes it. A page inside a page, as in a notebook, has no address to change.
  const linkTo = (t) => {
    const { step, name } = run.responses[state.response.index];
    return `#token=${step}/${name}:${state.response.positions[t]}`;
  };
  const linked = () => {
    const [, step, name, position] = location.hash.match(/^#token=(\d+)\/([\d.]+):(\d+)$/) ?? [];
    const index = run.responses.findIndex((response) => String(response.step) === step && response.name === name);
    return index < 0 ? null : { index, position: Number(position) };
  };

  function choose(t, scroll = true) {
    const tokens = $("tokens").children;
    if (!tokens.length) return;
    tokens[state.position]?.removeAttribute("aria-selected");
    state.position = Math.max(0, Math.min(tokens.length - 1, t));
    const token = tokens[state.position];
    token.setAttribute("aria-selected", "true");
    $("tokens").setAttribute("aria-activedescendant", token.id);
    if (scroll) token.scrollIntoView({ block: "nearest" });
    drawDetail(state.position);
  }

  function jump(direction) {
    const ahead = direction > 0
      ? state.changes.find((change) => change.t > state.position)
      : state.changes.findLast((change) => change.t < state.position);
    if (ahead) choose(ahead.t);
  }

  async function follow() {
    const link = linked();
    if (!link) return;
    $("group").value = $("search").value = "";
    await filter(link.index);
    const t = state.response.positions.indexOf(link.position);
    if (t >= 0) choose(t, false);
    $("tokens").scrollTop = $("tokens").children[state.position].offsetTop - $("tokens").clientHeight / 2;
    $("tokens").scrollIntoView({ block: "center" });
  }

  async function show(index) {
    const response = await readResponse(index);
    if (String(index) !== $("response").value) return; // another was chosen meanwhile
    state.response = response;
    state.position = state.tallest = 0;
    state.fresh = true;
    const { prompt, step, row, name, group, marks, conflicts } = run.responses[index];
    const own = Object.entries(run.views[row] ?? {}).map(([policy, text]) => `\n\n${policy} reads:\n${text}`);
    $("prompt").textContent = (run.prompts[row] ?? `prompt ${prompt} (its text was not recorded)`) + own.join("");
    const place = state.shown.findIndex((shown) => shown.index === Number(index)) + 1, all = run.responses.length;
    $("count").textContent = `Response ${place} of ${state.shown.length}${state.shown.length < all ? ` (filtered from ${all})` : ""}`;
    $("about").textContent = `Step ${step}, rollout ${name}, prompt ${prompt}, ${group}, ${[`${response.T} tokens`, ...marks].join(", ")}${conflicts.length ? `; teachers conflict at ${conflicts.length} (underlined)` : ""}`;
    drawTokens();
    drawWeights();
    const opening = state.taught.indexOf(Math.max(...state.taught));
    choose(opening, false);
    // Within its own box: a page that opens must not jump down to the viewer.
    $("tokens").scrollTop = $("tokens").children[opening].offsetTop - $("tokens").clientHeight / 2;
    document.documentElement.dataset.shown = String(index);
  }

  function showNone() {
    Object.assign(state, { response: null, weights: [], changes: [], position: 0 });
    for (const id of ["prompt", "tokens", "rows", "where", "teachers", "candidates", "rare", "changes"]) $(id).replaceChildren();
    $("link").removeAttribute("href");
    $("tokens").removeAttribute("aria-activedescendant");
    $("count").textContent = `0 of ${run.responses.length} responses`;
    $("about").textContent = "No response matches.";
    delete document.documentElement.dataset.shown;
  }

  function filter(first) {
    const group = $("group").value, words = $("search").value.toLowerCase();
    state.shown = run.responses.map((response, index) => ({ ...response, index })).filter((response) =>
      (!group || response.group === group) &&
      `${run.prompts[response.row] ?? ""} ${response.prompt}`.toLowerCase().includes(words));
    $("response").replaceChildren(...state.shown.map(({ index, step, row, name, group, prompt, moved, marks }) =>
      element("option", `step ${step}, ${name}, ${[group, `moves ${moved.toFixed(2)}`, ...marks].join(", ")}: ${inLine((run.prompts[row] ?? prompt).slice(0, 80))}`,
        { value: index })));
    if (!state.shown.length) return showNone();
    const index = first ?? state.shown[0].index;
    $("response").value = String(index);
    return show(index);
  }

  function step(direction) {
    const place = state.shown.findIndex(({ index }) => String(index) === $("response").value) + direction;
    if (!state.shown[place]) return;
    $("response").value = String(state.shown[place].index);
    show(state.shown[place].index);
  }

  const KEYS = {
    ArrowRight: () => choose(state.position + 1), ArrowLeft: () => choose(state.position - 1),
    ArrowDown: () => choose(state.position + 10), ArrowUp: () => choose(state.position - 10),
    PageDown: () => choose(state.position + 100), PageUp: () => choose(state.position - 100),
    Home: () => choose(0), End: () => choose(state.response.T - 1),
    n: () => jump(1), p: () => jump(-1), "]": () => step(1), "[": () => step(-1),
  };

  $("tokens").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key] || !state.response) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  for (const area of [$("tokens"), $("rows")]) {
    area.addEventListener("click", (event) => {
      const token = event.target.closest(".token");
      if (token) choose(Number(token.dataset.t), false);
    });
    area.addEventListener("mouseover", (event) => {
      const token = event.target.closest(".token");
      if (token) drawDetail(Number(token.dataset.t));
    });
    area.addEventListener("mouseleave", () => state.response && drawDetail(state.position));
  }
  $("rule").addEventListener("change", () => {
    if ($("rule").value === "recorded") $("gamma").value = run.gamma;
    drawWeights();
  });
  $("gamma").addEventListener("input", () => {
    // What was recorded has the gamma that it has: another one is a what-if, of the rule that the run trained with.
    if ($("rule").value === "recorded") $("rule").value = run.own;
    drawWeights();
  });
  $("all").addEventListener("change", () => {
    state.tallest = 0;
    if (state.response) drawDetail(state.position);
  });
  $("differ").addEventListener("change", drawWeights);
  addEventListener("hashchange", follow);
  $("group").addEventListener("change", () => filter());
  $("search").addEventListener("input", () => filter());
  $("response").addEventListener("change", () => show(Number($("response").value)));
  $("next").addEventListener("click", () => jump(1));
  $("previous").addEventListener("click", () => jump(-1));

  const shownGroups = new Set(run.responses.map((response) => response.group));
  for (const group of run.groups.filter((name) => shownGroups.has(name))) {
    $("group").append(element("option", group, { value: group }));
  }
  for (const [value, name] of run.rules) $("rule").append(element("option", name, { value }));
  $("gamma").min = Math.min(0.1, run.gamma);
  $("gamma").max = Math.max(20, 2 * run.gamma);
  $("gamma").value = run.gamma;
  $("legend").replaceChildren(...run.teachers.map((teacher, k) =>
    element("span", teacher, { class: "key", style: `--own: ${colour(k)}; --line: ${line(k)}` })));
  window.trustmopd = { run, state, trustWeights, mixedTarget };
  if (linked()) follow();
  else filter(run.opening);
})();
