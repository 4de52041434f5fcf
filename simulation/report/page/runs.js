// The runs whose timelines are in the page: choosing one, and following the page's address to one.

async function showRuns(theme) {
  const section = document.getElementById("run");
  const held = [...document.querySelectorAll("script[data-run-id]")], known = new Map();
  if (!section || !held.length) return;
  const shown = new RunSection(section, theme), chooser = shown.part("chooser");
  const byId = (id) => held.find((each) => each.dataset.runId === id);
  chooser.replaceChildren(...held.map((each) => {
    const option = element("option", each.dataset.title + (each.dataset.why ? ` – ${each.dataset.why}` : ""));
    option.value = each.dataset.runId;
    return option;
  }));
  chooser.parentElement.hidden = held.length < 2;
  const choose = async (id, view) => {
    if (!known.has(id)) known.set(id, new Run(JSON.parse(await unpack(byId(id).id))));
    chooser.value = id;
    document.documentElement.dataset.shown = id;
    shown.show(known.get(id), view);
  };
  const follow = async () => {
    const view = readAddress(), id = byId(view.run) ? view.run : held[0].dataset.runId;
    await choose(id, id === view.run || !view.run ? view : {});
    if (view.run) section.scrollIntoView();
  };
  chooser.addEventListener("change", () => choose(chooser.value));
  addEventListener("hashchange", follow);
  for (const link of document.querySelectorAll("button[data-run]")) {
    link.addEventListener("click", async () => {
      await choose(document.getElementById(link.dataset.run).dataset.runId);
      section.scrollIntoView({ behavior: "smooth" });
    });
  }
  await follow();
}

PARTS.push(showRuns);
