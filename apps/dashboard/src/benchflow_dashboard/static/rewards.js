// Draws the tables of rewards by step as lines. The tables hold the data, also without this file.
"use strict";

const STROKES = ["output", "action", "reasoning", "memory", "ink", "quiet"];
// As the classes series-of-0 to series-of-5, which the legend has.
const DASHES = [[], [5, 2], [2, 2], [8, 2], [1, 3], [8, 2, 2, 2]];

const numberOf = (text) => (text === "" ? null : Number(text));

const seriesOf = (table, colour) => {
  const names = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);
  const rows = [...table.tBodies[0].rows];
  const data = [rows.map((row) => Number(row.cells[0].dataset.step) + 1)];
  const series = [{ label: "step" }];
  const bands = [];
  names.forEach((name, at) => {
    const cells = rows.map((row) => row.cells[at + 1].dataset);
    const means = cells.map((cell) => numberOf(cell.mean));
    const deviations = cells.map((cell) => numberOf(cell.deviation) ?? 0);
    const stroke = colour(STROKES[at % STROKES.length]);
    const edge = { stroke: "transparent", points: { show: false } };
    const moved = (sign) => means.map((mean, n) => (mean === null ? null : mean + sign * deviations[n]));
    data.push(means, moved(1), moved(-1));
    series.push(
      { label: name, stroke, width: 1.5, dash: DASHES[at % DASHES.length], points: { size: 5 } },
      { label: `${name} +sd`, ...edge },
      { label: `${name} -sd`, ...edge },
    );
    bands.push({ series: [3 * at + 2, 3 * at + 3], fill: `${stroke}22` });
  });
  return { data, series, bands };
};

const draw = (figure) => {
  const place = figure.querySelector("[data-plot]");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--bf-${name}`).trim();
  const { data, series, bands } = seriesOf(figure.querySelector("table"), colour);
  const axis = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 } };
  place.replaceChildren();
  new uPlot(
    {
      width: Math.max(Math.min(figure.clientWidth, 720), 240),
      height: 200,
      series,
      bands,
      scales: { x: { time: false } },
      axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100] }, axis],
      legend: { show: false },
      cursor: { show: false },
    },
    data,
    place,
  );
};

if (window.uPlot) {
  const drawAll = () => document.querySelectorAll("[data-lines]").forEach(draw);
  drawAll();
  // A live update takes the drawn lines away: the page of the server has only the tables.
  document.addEventListener("live:patched", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}
