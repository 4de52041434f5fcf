// Puts the page together, part by part.

async function start() {
  const trouble = document.getElementById("trouble");
  try {
    const theme = new Theme();
    for (const show of PARTS) await show(theme);
    document.documentElement.dataset.ready = Math.round(performance.now());
  } catch (error) {
    trouble.hidden = false;
    trouble.textContent = typeof DecompressionStream === "undefined" || !Map.groupBy
      ? "This browser is too old for the timeline and the charts; the tables are complete."
      : `The timeline or the charts could not be drawn: ${error.message}`;
    throw error;
  }
}

start();
