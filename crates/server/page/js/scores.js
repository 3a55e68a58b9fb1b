// Predictions against outcomes: a point a decision, and the gain so far.

import { sql } from './api.js';
import { color, measured, plot } from './charts.js';
import { h, legend } from './dom.js';
import { number, words } from './format.js';
import { empty } from './states.js';

export async function scorePlot(signal) {
  const rows = await sql(
    `SELECT decision_kind, object, scored_time, within,
      CAST(predicted_gpu_ms AS DOUBLE) / 3600000.0 AS predicted,
      CAST(realised_gpu_ms AS DOUBLE) / 3600000.0 AS realised
    FROM prediction_scores WHERE realised_gpu_ms IS NOT NULL ORDER BY scored_time LIMIT 5000`,
    { signal },
  );
  if (!rows.length)
    return empty(
      'No outcome is measured yet',
      'A decision is scored when the time that it spoke of is over.',
    );
  // The ends of the line on which outcomes are as predicted; they are no decisions.
  const most = Math.max(...rows.map(row => row.predicted)) * 1.1;
  const least = Math.min(0, ...rows.map(row => row.predicted));
  const ends = [least, most].map(predicted => ({ predicted, realised: null }));
  const points = [...rows, ...ends].sort((a, b) => a.predicted - b.predicted);
  const drawn = plot('Realised against predicted gain of each decision, GPU-hours', 250, () => {
    const x = points.map(row => row.predicted);
    const dots = (chart, series) => {
      const pen = chart.ctx;
      pen.save();
      pen.fillStyle = chart.series[series].stroke(chart, series);
      chart.data[series].forEach((value, i) => {
        if (value === null) return;
        pen.beginPath();
        pen.arc(
          chart.valToPos(x[i], 'x', true),
          chart.valToPos(value, 'y', true),
          3.2 * devicePixelRatio,
          0,
          2 * Math.PI,
        );
        pen.fill();
      });
      pen.restore();
    };
    const series = (label, variable, more) => ({
      label,
      stroke: color(variable),
      points: { show: false },
      ...more,
    });
    const of = within => points.map(row => ((row.within === 1) === within ? row.realised : null));
    const diagonal = [...x];
    return {
      options: {
        scales: { x: { time: false }, y: {} },
        axes: [
          {
            values: measured,
            label: 'predicted, GPU-h',
            labelSize: 18,
            labelFont: '11px system-ui, sans-serif',
          },
          {},
        ],
        series: [
          {},
          series('As predicted', '--line-strong', { dash: [4, 4], width: 1 }),
          series('Within the bounds', '--c-productive', { paths: dots }),
          series('Outside', '--c-held', { paths: dots }),
        ],
        cursor: { drag: { x: false, y: false } },
        tip: at =>
          points[at].realised === null
            ? []
            : [
                `${words(points[at].decision_kind)} ${points[at].object}`,
                `predicted ${number(points[at].predicted)} GPU-h`,
                `realised ${number(points[at].realised)} GPU-h`,
              ],
      },
      data: [x, diagonal, of(true), of(false)],
    };
  });
  return [
    h(
      'div',
      { class: 'legend-row' },
      legend([
        ['--c-productive', 'Within the bounds'],
        ['--c-held', 'Outside'],
        ['--line-strong', 'As predicted'],
      ]),
    ),
    drawn,
  ];
}
