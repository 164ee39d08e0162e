// Draws the figures with the colours of the page, and again when the reader's theme changes.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const template = () => {
    const axis = {
      gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"),
      tickfont: { size: 12 }, ticklabelstandoff: 5, title: { font: { size: 13 } },
    };
    const clear = "rgba(0,0,0,0)";
    return {
      layout: {
        font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--ink") },
        paper_bgcolor: clear, plot_bgcolor: clear, xaxis: axis, yaxis: axis, legend: { bgcolor: clear },
        hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      },
    };
  };

  const draw = () => {
    for (const [id, figure] of Object.entries(figures)) {
      const layout = { ...figure.layout, template: template(), autosize: true };
      const config = { responsive: true, displaylogo: false, displayModeBar: false };
      Plotly.react(id, figure.data, layout, config);
    }
    document.documentElement.dataset.drawn = "true";
  };

  draw();
  dark.addEventListener("change", draw);
})();
