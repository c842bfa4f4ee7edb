"use strict";

// Settings go to the server as one request; its answer fills tables and charts.  The server makes numbers and charts, so that the
// page shows the output of `estimate`.

const ASK_AFTER_MS = 60; // a slider sends a request after it has stopped for this time
const SPEAK_AFTER_MS = 700; // and its value is read aloud after this time
const FIGURES = 4; // digits of a number in a table

const TIME_UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const ENERGY_UNITS = [[1e3, "kJ"], [1, "J"], [1e-3, "mJ"], [1e-6, "µJ"], [1e-9, "nJ"]];
const POWER_UNITS = [[1, "W"]];
const NUMBERS = { latency_s: TIME_UNITS, power_w: POWER_UNITS, energy_j: ENERGY_UNITS };

const get = (id) => document.getElementById(id);
const scales = { clock: [], batch: [], sequence: [] };
let choices = null;
let asking = null; // the running request, which a newer one cancels
let askTimer = 0;
let underWay = 0; // running actions, and a request that waits for its timer
let turn = 0; // number of the last choice of a workload or file
let faulted = 0; // and of the last one with a fault: earlier ones send no more requests
let speakTimer = 0;

// Talking to the server ------------------------------------------------------------------------------------------------

async function fetched(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server gives no answer; is estimate serve still running?");
  }
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

function post(path, body, signal) {
  const content = body instanceof Blob ? body : JSON.stringify(body);
  return fetched(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: content, signal });
}

// Controls -------------------------------------------------------------------------------------------------------------

function fill(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(({ value, label }) => new Option(label, value)));
  const kept = options.find((option) => option.value === before);
  select.value = kept ? before : options.length ? options[0].value : "";
}

function setScale(name, values, value, reason) {
  const slider = get(name);
  scales[name] = values;
  slider.max = Math.max(values.length - 1, 0);
  slider.value = nearest(values, value);
  slider.disabled = values.length < 2;
  const about = get(`${name}-reason`);
  if (about) about.textContent = reason;
  showScale(name);
}

function nearest(values, value) {
  let best = 0;
  values.forEach((each, index) => {
    if (Math.abs(each - value) < Math.abs(values[best] - value)) best = index;
  });
  return best;
}

function chosen(name) {
  const values = scales[name];
  return values.length ? values[Number(get(name).value)] : null;
}

function showScale(name) {
  const value = chosen(name);
  const text = value === null ? "–" : name === "clock" ? `${value} MHz` : String(value);
  get(`${name}-value`).textContent = text;
  get(name).setAttribute("aria-valuetext", value === null ? "unknown" : text);
}

function stated(id) {
  const field = get(id);
  return field.value !== "" && field.checkValidity() ? Number(field.value) : null;
}

// An invalid number is reported: otherwise the result would seem to include it.
function checkFields(form) {
  for (const field of get(form).querySelectorAll("input[type=number]")) {
    if (!field.checkValidity()) throw new Error(`${field.labels[0].textContent}: ${field.validationMessage}`);
  }
}

function statedSizes() {
  checkFields("settings");
  const batch = stated("at-batch");
  return batch === null ? null : { batch, sequence: stated("at-sequence") ?? 0 };
}

function showClocks() {
  const own = choices.bundles.find((bundle) => bundle.key === get("bundle").value);
  const board = choices.gpus.find((gpu) => gpu.gpu === get("gpu").value) || own;
  get("gpu").options[0].text = `${own.gpu} (the bundle's own)`;
  const [low, high] = board.gpu === own.gpu ? own.fitted_clocks_mhz : [0, Infinity]; // a forecast has no fitted clocks
  setScale("clock", board.clocks_mhz, Math.min(Math.max(board.usual_clock_mhz, low), high), "");
  get("power-cap").placeholder = String(board.power_limit_w);
  get("host-launch").placeholder = String((board.gpu === own.gpu ? own : board).host_launch_us);
}

// Loads the possible changes of the chosen workload; returns whether it is still the chosen one.
async function showWorkload(at) {
  const key = get("workload").value;
  if (!key) throw new Error("Load a workload file to begin.");
  const workload = await post("api/workload", { workload: key, at });
  if (get("workload").value !== key) return false; // the user has chosen another one meanwhile
  const kernels = `${workload.kernels} different kernels, ${workload.launches} launches`;
  get("workload-about").textContent = kernels;
  if (!at) {
    get("at-batch").value = workload.at?.batch ?? "";
    get("at-sequence").value = workload.at?.sequence ?? "";
  }
  for (const name of ["batch", "sequence"]) setScale(name, workload[name].values, workload[name].value, workload[name].reason);
  for (const name of ["precision", "attention"]) {
    fill(get(name), [{ value: "", label: "as written" }, ...workload[name].map((value) => ({ value, label: value }))]);
  }
  return true;
}

async function load(files) {
  for (const file of files) {
    if (file.size > choices.most_bytes) throw new Error(`${file.name}: ${file.size} bytes are too many; at most ${choices.most_bytes} are read`);
    const entry = await post(`api/load?name=${encodeURIComponent(file.name)}`, file);
    choices.workloads.push(entry);
    fillWorkloads();
    get("workload").value = entry.key;
  }
  return showWorkload(null);
}

function fillWorkloads() {
  const about = { given: "", example: " (example)", loaded: " (loaded)" };
  fill(get("workload"), choices.workloads.map((entry) => ({ value: entry.key, label: entry.name + about[entry.source] })));
}

// Asking ---------------------------------------------------------------------------------------------------------------

function question() {
  return {
    workload: get("workload").value,
    bundle: get("bundle").value,
    gpu: get("gpu").value,
    precision: get("precision").value,
    attention: get("attention").value,
    at: statedSizes(),
    batch: chosen("batch"),
    sequence: chosen("sequence"),
    clock_mhz: chosen("clock"),
    power_cap_w: stated("power-cap"),
    host_launch_us: stated("host-launch"),
  };
}

function begun(more) {
  underWay += more;
  get("results").setAttribute("aria-busy", String(underWay > 0));
}

function askSoon() {
  askNoMore();
  begun(1);
  askTimer = setTimeout(() => {
    guarded(ask);
    askNoMore();
  }, ASK_AFTER_MS);
}

// Cancels a waiting request.
function askNoMore() {
  if (!askTimer) return;
  clearTimeout(askTimer);
  askTimer = 0;
  begun(-1);
}

// Another workload or file.  If it has a fault, the request for the former one is cancelled: no late answer hides the fault.
function turned(action) {
  const own = ++turn;
  return guarded(async () => {
    let ready;
    try {
      ready = await action();
    } catch (error) {
      faulted = Math.max(faulted, own);
      askNoMore();
      asking?.abort();
      throw error;
    }
    if (ready && own > faulted) await ask();
  });
}

async function ask() {
  asking?.abort();
  asking = new AbortController();
  const answer = await post("api/answer", question(), asking.signal);
  show(answer);
}

async function guarded(action) {
  begun(1);
  try {
    await action();
  } catch (error) {
    if (error.name === "AbortError") return;
    get("error").textContent = error.message;
    get("results").classList.add("stale");
    clearTimeout(speakTimer);
    for (const id of ["headline", "status"]) get(id).textContent = "No result for these settings";
  } finally {
    begun(-1);
  }
}

// Showing --------------------------------------------------------------------------------------------------------------

function inUnits(value, units) {
  if (value === null || value === undefined) return "–";
  const [scale, unit] = units.find(([size]) => Math.abs(value) >= size) ?? (value ? units[units.length - 1] : units[0]);
  return `${figures(value / scale)} ${unit}`;
}

function figures(value) {
  const whole = value ? Math.max(1, Math.floor(Math.log10(Math.abs(value))) + 1) : 1;
  return value.toFixed(Math.max(0, FIGURES - whole));
}

function spoken(estimate, field) {
  return withSpread(estimate[field], estimate[`${field}_std`], NUMBERS[field]);
}

function interval(estimate, field, units) {
  const ends = [estimate[`${field}_low`], estimate[`${field}_high`]];
  return ends[0] === null || ends[0] === undefined ? "unknown" : ends.map((end) => inUnits(end, units)).join(" to ");
}

function withSpread(value, std, units) {
  if (value === null || std === null) return inUnits(value, units);
  const [scale, unit] = units.find(([size]) => Math.abs(value) >= size) ?? units[0];
  return `${figures(value / scale)} ± ${Number((std / scale).toPrecision(2))} ${unit}`;
}

const share = (value) => (value === null || !Number.isFinite(value) ? "–" : `${(100 * value).toFixed(1)}%`);

function fillTable(id, rows, mark) {
  get(id).tBodies[0].replaceChildren(...rows.map((cells, number) => {
    const row = document.createElement("tr");
    if (mark?.(number)) {
      row.className = "chosen";
      row.setAttribute("aria-current", "true");
    }
    cells.forEach((text, column) => {
      const cell = document.createElement(column ? "td" : "th");
      if (column) cell.className = "n";
      else cell.scope = "row";
      cell.textContent = text;
      row.append(cell);
    });
    return row;
  }));
}

function showChart(name, svg) {
  const figure = get(`chart-${name}`);
  if (!svg) return figure.replaceChildren();
  figure.replaceChildren(document.importNode(new DOMParser().parseFromString(svg, "text/html").body.firstElementChild, true));
}

function show(answer) {
  const { estimate, explanation, sweep } = answer;
  get("error").textContent = "";
  get("results").classList.remove("stale");
  get("results").dataset.clock = estimate.asked_clock_mhz;
  const simulated = answer.simulated ? " (fitted on a simulated board)" : "";
  get("results-title").textContent = `${estimate.workload} on ${estimate.gpu}, ${estimate.validity}, bundle ${estimate.bundle}${simulated}`;
  fillTable("numbers", Object.entries(NUMBERS).map(([field, units]) => [field.split("_")[0], spoken(estimate, field), interval(estimate, field, units)]));
  Object.keys(NUMBERS).forEach((field, row) => {
    get("numbers").tBodies[0].rows[row].title = `${field} ${estimate[field] ?? "unknown"}`;
  });
  showRemarks("remarks", estimate);
  for (const name of ["energy", "latency", "power", "time", "modules"]) showChart(name, answer.charts[name]);
  showSweep(sweep, estimate.asked_clock_mhz);
  showShares(estimate, explanation);
  showKernels(explanation.kernels, answer.kernels);
  speak(answer);
}

function showRemarks(list, estimate) {
  const lines = ["warning", "note"].flatMap((kind) => [...new Set(estimate[`${kind}s`])].map((text) => [kind, text]));
  get(list).replaceChildren(...lines.map(([kind, text]) => {
    const item = document.createElement("li");
    item.className = kind;
    item.textContent = `${kind}: ${text}`;
    return item;
  }));
}

function showSweep(sweep, clock) {
  fillTable("sweep", sweep.asked_clock_mhz.map((asked, i) => [
    `${asked} MHz`,
    `${Math.round(sweep.sm_clock_mhz[i])} MHz`,
    withSpread(sweep.latency_s[i], sweep.latency_s_std[i], TIME_UNITS),
    withSpread(sweep.power_w[i], sweep.power_w_std[i], POWER_UNITS),
    withSpread(sweep.energy_j[i], sweep.energy_j_std[i], ENERGY_UNITS),
  ]), (row) => sweep.asked_clock_mhz[row] === clock);
}

function showShares(estimate, explanation) {
  const limits = { ...explanation.limits_s, "waiting for the host": explanation.waiting_s };
  fillTable("limits", Object.entries(limits).map(([name, value]) => [name, inUnits(value, TIME_UNITS), share(value / estimate.latency_s)]));
  const parts = Object.entries(explanation.energy_parts_j);
  fillTable("parts", parts.map(([name, value]) => [name, inUnits(value, ENERGY_UNITS), share(value / estimate.energy_j)]));
}

function showKernels(kernels, all) {
  fillTable("kernels", kernels.map((kernel) => [
    kernel.operator + (kernel.outside_validity ? " *" : ""),
    String(kernel.count),
    inUnits(kernel.time_s, TIME_UNITS),
    share(kernel.time_share),
    inUnits(kernel.energy_j, ENERGY_UNITS),
    `${kernel.limit} ${share(kernel.limits[kernel.limit])}`,
    share(kernel.ideal_s / kernel.time_s),
  ]));
  const caption = get("kernels").caption;
  const marked = kernels.some((kernel) => kernel.outside_validity) ? "; * the fit has seen no kernel like it" : "";
  caption.textContent = "Kernels, the longest first" + (all > kernels.length ? `; ${kernels.length} of ${all}` : "") + marked;
}

function speak(answer) {
  const numbers = Object.keys(NUMBERS).map((field) => `${field.split("_")[0]} ${spoken(answer.estimate, field)}`).join(", ");
  const asked = answer.estimate.asked_clock_mhz;
  const runs = Math.round(answer.estimate.sm_clock_mhz);
  const lowered = answer.estimate.sm_clock_mhz < asked ? `, lowered to ${runs} MHz by the power limit` : "";
  get("headline").textContent = `${numbers} at ${asked} MHz${lowered}`;
  clearTimeout(speakTimer);
  speakTimer = setTimeout(() => {
    get("status").textContent = get("headline").textContent;
  }, get("status").textContent === "Loading" ? 0 : SPEAK_AFTER_MS);
}

// Served models --------------------------------------------------------------------------------------------------------

const SERVED = {
  ttft_s: ["time to the first token (TTFT), empty engine", TIME_UNITS, null],
  ttft_loaded_s: ["– under load", TIME_UNITS, "ttft_s"],
  tpot_s: ["time per output token (TPOT)", TIME_UNITS],
  tokens_per_s: ["output tokens per second", [[1, ""]]],
  power_w: ["power of all GPUs", POWER_UNITS],
  energy_per_token_j: ["energy of an output token", ENERGY_UNITS],
};
let serving = null; // the running request

async function askServed() {
  serving?.abort();
  serving = new AbortController();
  const number = (id) => Number(get(id).value);
  try {
    checkFields("served-settings");
    showServed(await post("api/served", {
      model: get("llm").value,
      gpu: get("llm-gpu").value,
      engine: get("llm-engine").value,
      weights: get("llm-weights").value,
      prompt: number("llm-prompt"),
      output: number("llm-output"),
      batch: number("llm-batch"),
      tensor_parallel: number("llm-parallel"),
    }, serving.signal));
  } catch (error) {
    if (error.name === "AbortError") return;
    get("served-error").textContent = error.message;
    get("served-headline").textContent = "No result for these settings";
    get("served-answer").classList.add("stale");
  }
}

function showServed(answer) {
  get("served-error").textContent = "";
  get("served-answer").classList.toggle("stale", answer.state !== "");
  const boards = `${answer.gpus} × ${answer.gpu}, ${answer.engine}`;
  get("served-headline").textContent = answer.state || `${answer.model} on ${boards}: ${figures(answer.tokens_per_s)} tokens/s, ${answer.validity}`;
  fillTable("served-numbers", Object.entries(SERVED).map(
    ([field, [name, units, limits = field]]) => [name, inUnits(answer[field], units), limits ? interval(answer, limits, units) : "–"]));
  Object.keys(SERVED).forEach((field, row) => {
    get("served-numbers").tBodies[0].rows[row].title = `${field} ${answer[field] ?? "unknown"}`;
  });
  showRemarks("served-remarks", { ...answer, warnings: answer.warnings.filter((text) => text !== answer.state) });
}

function listenServed() {
  const reveal = () => {
    if (location.hash === "#served") get("served").open = true;
  };
  get("served-settings").addEventListener("submit", (event) => event.preventDefault());
  get("served-settings").addEventListener("change", askServed);
  get("served").addEventListener("toggle", () => {
    if (get("served").open) askServed();
  });
  window.addEventListener("hashchange", reveal);
  reveal();
}

// Events ---------------------------------------------------------------------------------------------------------------

function listen() {
  get("settings").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["clock", "batch", "sequence"]) {
    get(name).addEventListener("input", () => {
      showScale(name);
      askSoon();
    });
  }
  for (const name of ["precision", "attention"]) get(name).addEventListener("change", askSoon);
  for (const name of ["power-cap", "host-launch"]) get(name).addEventListener("input", askSoon);
  for (const name of ["bundle", "gpu"]) {
    get(name).addEventListener("change", () => {
      const board = choices.gpus.find(({ gpu }) => gpu === get("gpu").value);
      if (name === "gpu" && board) get("bundle").value = board.bundle;
      showClocks();
      askSoon();
    });
  }
  const changed = (at) => () => turned(() => showWorkload(at()));
  get("workload").addEventListener("change", changed(() => null));
  const restated = changed(statedSizes);
  get("at-batch").addEventListener("change", restated);
  get("at-sequence").addEventListener("change", () => get("at-batch").value && restated()); // a batch may follow
  const take = (files) => turned(() => load([...files]));
  get("file").addEventListener("change", async (event) => {
    await take(event.target.files);
    event.target.value = ""; // the same file can be loaded again
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files.length) take(event.dataTransfer.files);
  });
}

async function start() {
  choices = await fetched("api/choices");
  fillWorkloads();
  fill(get("bundle"), choices.bundles.map(({ key, name, simulated }) => ({ value: key, label: simulated ? `${name} (simulated)` : name })));
  fill(get("gpu"), [{ value: "", label: "the bundle's own" }, ...choices.gpus.map(({ gpu }) => ({ value: gpu, label: gpu }))]);
  fill(get("llm"), choices.models.map((name) => ({ value: name, label: name })));
  fill(get("llm-gpu"), choices.gpus.map(({ gpu }) => ({ value: gpu, label: gpu })));
  fill(get("llm-engine"), [{ value: "", label: "not stated" }, ...choices.engines.map((name) => ({ value: name, label: name }))]);
  for (const [id, usual] of [["llm", "llama-3.1-8b"], ["llm-gpu", "h100-sxm"]]) {
    if ([...get(id).options].some((option) => option.value === usual)) get(id).value = usual;
  }
  showClocks();
  listen();
  listenServed();
  await showWorkload(null);
  await ask();
}

guarded(start);
