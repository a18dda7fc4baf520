// Plots: stacked bars of how requests ended, with the values of the bar that is pointed at.
// The figures come with the page in `data-series`, and anew with every refresh.
"use strict";

(() => {
  const plots = new Map(); // the element's id → its uPlot and the figures behind it
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const colour = (name) => getComputedStyle(document.body).getPropertyValue("--" + name).trim();
  const whole = new Intl.NumberFormat("en");
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const day = { day: "numeric", month: "short" };
  const minute = { hour: "2-digit", minute: "2-digit" };

  // Each series is the sum of itself and those below it, so that drawing the tallest first stacks them. Where it has
  // nothing of its own nothing is drawn: the edges of hidden bars would shine through.
  function stacked(series, answers) {
    const sums = [];
    let below = series.starts.map(() => 0);
    for (const answer of answers) {
      const own = series.answers[answer];
      below = own.map((n, i) => n + below[i]);
      sums.push(below.map((sum, i) => (own[i] ? sum : null)));
    }
    return [series.starts, ...sums.reverse()];
  }

  function tell(id, series, answers, index) {
    const pointed = index !== null && index !== undefined;
    for (const cell of document.querySelectorAll(`.legend[data-of="${id}"] [data-answer]`)) {
      const values = series.answers[cell.dataset.answer];
      cell.textContent = whole.format(pointed ? values[index] : values.reduce((a, b) => a + b, 0));
    }
    const from = pointed && new Date(1000 * series.starts[index]);
    const until = pointed && new Date(1000 * (series.starts[index] + series.seconds));
    document.querySelector(`.pointed[data-of="${id}"]`).textContent = pointed
      ? `${from.toLocaleDateString([], day)} ${from.toLocaleTimeString([], minute)} – ${until.toLocaleTimeString([], minute)}`
      : "";
  }

  function draw(element, series) {
    const id = element.id;
    const answers = element.dataset.answers.split(" ");
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const bars = uPlot.paths.bars({ size: [0.92, 100], align: 1 });
    const end = () => plots.get(id).series.starts.at(-1) + plots.get(id).series.seconds;
    const options = {
      width: element.clientWidth,
      height: element.clientHeight,
      padding: [8, 22, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { setScale: false }, points: { show: false } },
      scales: {
        x: { range: () => [plots.get(id).series.starts[0], end()] },
        y: { range: (u, low, high) => [0, Math.max(4, high * 1.05)] },
      },
      axes: [axis, { ...axis, size: 48, values: (u, values) => values.map((v) => (Number.isInteger(v) ? short.format(v) : "")) }],
      series: [{}, ...answers.map((answer) => ({ stroke: colour(answer), fill: colour(answer), width: 0, paths: bars, points: { show: false } })).reverse()],
      hooks: { setCursor: [(u) => tell(id, plots.get(id).series, answers, u.cursor.left < 0 ? null : barAt(u))] },
    };
    // A bar reaches from its start to the next one's: not the nearest start but the one before counts.
    const barAt = (u) => {
      const at = u.posToVal(u.cursor.left, "x");
      return Math.max(0, u.data[0].findLastIndex((start) => start <= at));
    };
    plots.set(id, { series, answers });
    plots.get(id).plot = new uPlot(options, stacked(series, answers), element);
    tell(id, series, answers, null);
  }

  function show() {
    const source = document.querySelector("[data-series]");
    if (!source) return;
    const series = JSON.parse(source.dataset.series);
    for (const element of document.querySelectorAll(".plot .canvas")) {
      const known = plots.get(element.id);
      if (known && element.contains(known.plot.root)) {
        known.series = series;
        known.plot.setData(stacked(series, known.answers));
        if (known.plot.cursor.left < 0) tell(element.id, series, known.answers, null);
      } else {
        draw(element, series);
      }
    }
  }

  function anew() {
    for (const { plot } of plots.values()) plot.destroy();
    plots.clear();
    show();
  }

  // The arrows walk from bar to bar.
  function walk(event) {
    const known = plots.get(event.target.id);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!known || !step) return;
    event.preventDefault();
    const { plot, series } = known;
    const last = series.starts.length - 1;
    known.at = known.at === undefined ? last : Math.min(last, Math.max(0, known.at + step));
    const left = plot.valToPos(series.starts[known.at] + series.seconds / 2, "x");
    plot.setCursor({ left, top: 10 });
  }

  function leave(event) {
    const known = plots.get(event.target.id);
    if (!known) return;
    delete known.at;
    known.plot.setCursor({ left: -10, top: -10 });
  }

  document.addEventListener("DOMContentLoaded", () => {
    show();
    dark.addEventListener("change", anew);
    document.body.addEventListener("htmx:afterSwap", show);
    for (const element of document.querySelectorAll(".plot .canvas")) {
      element.addEventListener("keydown", walk);
      element.addEventListener("blur", leave);
      new ResizeObserver(() => {
        const known = plots.get(element.id);
        if (known) known.plot.setSize({ width: element.clientWidth, height: element.clientHeight });
      }).observe(element);
    }
  });
})();
