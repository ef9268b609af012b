// A crosshair that reads every chart at one moment, and legends that hide and show flows. The page is complete without.
"use strict";
(() => {
  const figures = [...document.querySelectorAll("figure[data-end]")].map((figure) => {
    const data = figure.querySelector("script");
    return {
      end: Number(figure.dataset.end),
      series: data ? JSON.parse(data.textContent) : [],
      buttons: [...figure.querySelectorAll(".legend button")],
      panels: [...figure.querySelectorAll(".panel")],
      figure,
    };
  });
  const write = (v) => (v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2));
  const nearest = (times, t) => {
    let low = 0, high = times.length - 1;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (times[mid] < t) low = mid + 1; else high = mid;
    }
    return low > 0 && t - times[low - 1] < times[low] - t ? low - 1 : low;
  };
  const hidden = (f, flow) => f.buttons.some((b) => b.dataset.flow === String(flow) && b.getAttribute("aria-pressed") === "false");
  const readout = (f, panel, metric, t) => {
    const out = panel.querySelector("output");
    out.replaceChildren();
    if (t === null || t > f.end) return;
    const time = document.createElement("span");
    time.textContent = (t / 1000).toFixed(1) + " s";
    out.append(time);
    for (const s of f.series) {
      if (!s.t_ms.length || hidden(f, s.flow)) continue;
      const value = document.createElement("b");
      value.style.color = panel.querySelector(`path.line[data-flow="${s.flow}"]`).getAttribute("stroke");
      value.textContent = write(s.values[metric][nearest(s.t_ms, t)] / Number(panel.dataset.scale));
      out.append(value);
    }
  };
  let now = null;
  const show = (t) => {
    now = t;
    for (const f of figures) {
      f.panels.forEach((panel, metric) => {
        const cross = panel.querySelector(".cross");
        cross.style.display = t === null || t > f.end ? "none" : "block";
        if (t !== null) cross.style.left = (100 * t) / f.end + "%";
        readout(f, panel, metric, t);
      });
    }
  };
  for (const f of figures) {
    for (const panel of f.panels) {
      const plot = panel.querySelector(".plot");
      const at = (event) => {
        const box = plot.getBoundingClientRect();
        return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * f.end;
      };
      plot.tabIndex = 0;
      plot.addEventListener("pointermove", (event) => show(at(event)));
      plot.addEventListener("pointerdown", (event) => show(at(event)));
      plot.addEventListener("pointerleave", () => show(null));
      plot.addEventListener("blur", () => show(null));
      plot.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!step) return;
        event.preventDefault();
        show(Math.min(f.end, Math.max(0, (now ?? 0) + (step * f.end) / 100)));
      });
    }
  }
  for (const figure of document.querySelectorAll("figure")) {
    for (const button of figure.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") === "false";
        button.setAttribute("aria-pressed", String(on));
        figure.querySelectorAll(`.plot [data-flow="${button.dataset.flow}"]`).forEach((mark) => { mark.style.display = on ? "" : "none"; });
      });
    }
  }
})();
