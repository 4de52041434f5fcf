// Charts from plotly figures, in the colours of the page.

async function showCharts(theme) {
  const holders = [...document.querySelectorAll("[data-figure]")];
  if (!holders.length) return;
  document.head.append(element("script", await unpack("plotly")));
  const draw = () => { for (const holder of holders) drawChart(holder, theme); };
  draw();
  theme.listeners.push(draw);
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
  Plotly.react(holder, figure.data, layout, { responsive: true, displayModeBar: false });
}

PARTS.push(showCharts);
