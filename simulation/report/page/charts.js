// Charts from plotly figures, in the colours of the page.

async function showCharts(theme) {
  const holders = [...document.querySelectorAll("[data-figure]")];
  if (!holders.length) return;
  document.head.append(element("script", await unpack("plotly")));
  const draw = () => { for (const holder of holders) drawChart(holder, theme); };
  draw();
  theme.listeners.push(draw);
}

const NARROW = 480;

// On a phone names take several lines, and the legend has a line for each key below the chart.
function narrow(holder, data, layout) {
  const fold = (name) => String(name).split(/(?<=, )|(?<=-)/).reduce((lines, part) => {
    if (lines.length && (lines.at(-1) + part).length <= 20) lines[lines.length - 1] += part;
    else lines.push(part);
    return lines;
  }, []);
  if (layout.yaxis.ticktext) layout.yaxis = { ...layout.yaxis, ticktext: layout.yaxis.ticktext.map((name) => fold(name).join("<br>")) };
  const keys = data.filter((trace) => trace.showlegend !== false), long = keys.some(({ name }) => name.length > 20);
  holder.dataset.height ??= holder.clientHeight;
  const rows = long ? keys.length : Math.ceil(keys.length / 2);
  holder.style.height = Number(holder.dataset.height) + 20 * rows + "px";
  layout.legend = { ...layout.legend, orientation: long ? "v" : "h", font: { size: 11.5 } };
  layout.margin = { ...layout.margin, l: 44, r: 8, b: 60 + 20 * rows };
}

function drawChart(holder, theme) {
  const figure = JSON.parse(document.getElementById(holder.dataset.figure).textContent), { colours } = theme;
  const axis = { gridcolor: colours.line, zerolinecolor: colours.line, linecolor: colours.line, automargin: true };
  const layout = {
    ...figure.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12.5, color: colours.text },
    hoverlabel: { bgcolor: colours.panel, bordercolor: colours.line, font: { color: colours.text } },
    xaxis: { ...axis, ...figure.layout.xaxis }, yaxis: { ...axis, ...figure.layout.yaxis },
  };
  for (const trace of figure.data) {
    const { colour } = trace.meta ?? {};
    if (!colour) continue;
    const value = theme.get(colour);
    trace.marker = { ...trace.marker, color: value };
    if (trace.line) trace.line = { ...trace.line, color: value };
  }
  if (holder.clientWidth < NARROW) narrow(holder, figure.data, layout);
  Plotly.react(holder, figure.data, layout, { responsive: true, displayModeBar: false });
}

PARTS.push(showCharts);
