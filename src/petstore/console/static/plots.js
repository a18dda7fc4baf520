// Draws requests by response class as stacked bars, and shows the values of the bar under the pointer.
// The data is in the `data-series` attribute, which each refresh of the page replaces.
"use strict";

(() => {
  const plots = new Map(); // the element's id → its uPlot, series and classes
  const dark = matchMedia("(prefers-color-scheme: dark)");

  const colour = (name) => getComputedStyle(document.body).getPropertyValue("--" + name).trim();
  const whole = new Intl.NumberFormat("en");
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const day = { day: "numeric", month: "short" };
  const minute = { hour: "2-digit", minute: "2-digit" };

  // Each series includes the counts of the series below it, so drawing the tallest first makes a stack. A bar without
  // requests is null. Otherwise, its edges would show behind the equally tall bar that is drawn in front of it.
  function stacked(series, classes) {
    const sums = [];
    let below = series.starts.map(() => 0);
    for (const name of classes) {
      const own = series.requests[name];
      below = own.map((count, i) => count + below[i]);
      sums.push(below.map((sum, i) => (own[i] ? sum : null)));
    }
    return [series.starts, ...sums.reverse()];
  }

  // Shows the values of one bar in the legend, or the totals of all bars if there is no index.
  function showValues(id, series, index) {
    const selected = index !== null && index !== undefined;
    for (const cell of document.querySelectorAll(`.legend[data-plot="${id}"] [data-class]`)) {
      const name = cell.dataset.class;
      cell.textContent = whole.format(selected ? series.requests[name][index] : series.sums[name]);
    }
    const from = selected && new Date(1000 * series.starts[index]);
    const until = selected && new Date(1000 * (series.starts[index] + series.seconds));
    document.querySelector(`.selected-bar[data-plot="${id}"]`).textContent = selected
      ? `${from.toLocaleDateString([], day)} ${from.toLocaleTimeString([], minute)} – ${until.toLocaleTimeString([], minute)}`
      : "";
  }

  function draw(element, series) {
    const id = element.id;
    const classes = element.dataset.classes.split(" ");
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const bars = uPlot.paths.bars({ size: [0.92, 100], align: 1 });
    const end = () => plots.get(id).series.starts.at(-1) + plots.get(id).series.seconds;
    // uPlot finds the bar whose start is nearest to the pointer. A bar extends from its start to the start of the next bar,
    // so use the last start before the pointer.
    const barUnderPointer = (u) => {
      const at = u.posToVal(u.cursor.left, "x");
      return Math.max(0, u.data[0].findLastIndex((start) => start <= at));
    };
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
      axes: [axis, { ...axis, size: 48, values: (u, values) => values.map((v) => (Number.isInteger(v) ? compact.format(v) : "")) }],
      series: [{}, ...classes.map((name) => ({ stroke: colour(name), fill: colour(name), width: 0, paths: bars, points: { show: false } })).reverse()],
      hooks: { setCursor: [(u) => showValues(id, plots.get(id).series, u.cursor.left < 0 ? null : barUnderPointer(u))] },
    };
    plots.set(id, { series, classes });
    plots.get(id).plot = new uPlot(options, stacked(series, classes), element);
    showValues(id, series, null);
  }

  function update() {
    const source = document.querySelector("[data-series]");
    if (!source) return;
    const series = JSON.parse(source.dataset.series);
    for (const element of document.querySelectorAll(".plot .canvas")) {
      const drawn = plots.get(element.id);
      if (drawn && element.contains(drawn.plot.root)) {
        drawn.series = series;
        drawn.plot.setData(stacked(series, drawn.classes));
        if (drawn.plot.cursor.left < 0) showValues(element.id, series, null);
      } else {
        draw(element, series);
      }
    }
  }

  function redraw() {
    for (const { plot } of plots.values()) plot.destroy();
    plots.clear();
    update();
  }

  // The arrow keys select a bar.
  function onKeydown(event) {
    const drawn = plots.get(event.target.id);
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!drawn || !step) return;
    event.preventDefault();
    const { plot, series } = drawn;
    const last = series.starts.length - 1;
    drawn.selected = drawn.selected === undefined ? last : Math.min(last, Math.max(0, drawn.selected + step));
    const left = plot.valToPos(series.starts[drawn.selected] + series.seconds / 2, "x");
    plot.setCursor({ left, top: 10 });
  }

  function onBlur(event) {
    const drawn = plots.get(event.target.id);
    if (!drawn) return;
    delete drawn.selected;
    drawn.plot.setCursor({ left: -10, top: -10 });
  }

  document.addEventListener("DOMContentLoaded", () => {
    update();
    dark.addEventListener("change", redraw);
    document.body.addEventListener("htmx:afterSwap", update);
    for (const element of document.querySelectorAll(".plot .canvas")) {
      element.addEventListener("keydown", onKeydown);
      element.addEventListener("blur", onBlur);
      new ResizeObserver(() => {
        const drawn = plots.get(element.id);
        if (drawn) drawn.plot.setSize({ width: element.clientWidth, height: element.clientHeight });
      }).observe(element);
    }
  });
})();
