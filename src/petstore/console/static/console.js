// Page behaviour: refresh, local times, dialogs, copying, selection, upload progress.
// Every page works without scripts too, only slower.
"use strict";

(() => {
  const all = (selector, root = document) => root.querySelectorAll(selector);
  const formats = {
    medium: new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" }),
    short: new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "short" }),
  };

  function showLocalTimes(root) {
    for (const time of all("time[datetime]:not([title])", root)) {
      time.title = time.textContent;
      time.textContent = formats[time.dataset.style].format(new Date(time.dateTime));
    }
  }

  function showMessage(text, ok) {
    const line = document.createElement("p");
    line.className = "message " + (ok ? "ok" : "error");
    line.textContent = text;
    document.getElementById("messages").replaceChildren(line);
  }

  // Elements with data-refresh load their content again while the page is visible.
  function startRefresh(element) {
    setInterval(() => {
      if (document.visibilityState === "visible" && !document.querySelector("dialog[open]")) htmx.trigger(element, "refresh");
    }, 1000 * element.dataset.refresh);
  }

  // A swap keeps open details open, and the selected animals that a new search still finds selected.
  let openDetails = [];
  let selectedIds = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    selectedIds = event.target.id === "rows" ? [...all("#rows input:checked")].map((box) => box.value) : [];
    openDetails = [...all("details[open][id]")].map((details) => [details.id, details.querySelector(".scroll")?.scrollTop ?? 0]);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    for (const [id, top] of openDetails) {
      const details = document.getElementById(id);
      if (!details || details.open) continue;
      details.open = true;
      if (details.querySelector(".scroll")) details.querySelector(".scroll").scrollTop = top;
    }
    for (const box of all("#rows input[type=checkbox]")) box.checked ||= selectedIds.includes(box.value);
    if (event.target.id === "dialog" && !event.target.open) event.target.showModal();
    updateSelection();
  });
  document.addEventListener("htmx:load", (event) => showLocalTimes(event.target));

  document.addEventListener("htmx:responseError", (event) => {
    const text = event.detail.xhr.getResponseHeader("content-type")?.startsWith("text/plain") && event.detail.xhr.responseText;
    showMessage(text || "The console could not do that.", false);
  });
  document.addEventListener("htmx:sendError", () => showMessage("The console does not respond. This page may be out of date.", false));

  function updateSelection() {
    const count = all("#rows input:checked").length;
    for (const box of all("[data-select-all]")) box.checked = count > 0 && count === all("#rows input[type=checkbox]").length;
    for (const label of all("[data-selected-count]")) label.textContent = count ? `Change ${count} selected to` : "Change the selected to";
    for (const button of all("#selection .actions button")) button.disabled = !count;
  }
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-select-all]")) {
      for (const box of all("#rows input[type=checkbox]")) box.checked = event.target.checked;
    }
    if (event.target.closest("#selection")) updateSelection();
  });

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      try {
        await navigator.clipboard.writeText(document.getElementById(copy.dataset.copy).textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(document.getElementById(copy.dataset.copy));
        copy.textContent = "Press Ctrl+C";
      }
    }
    const close = event.target.closest("dialog [data-close]");
    if (close) {
      event.preventDefault();
      close.closest("dialog").close();
    }
  });

  // A script uploads the file, because a plain form shows no progress. The response names the page of the import.
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-upload]");
    if (!form) return;
    event.preventDefault();
    const request = new XMLHttpRequest();
    const progress = form.querySelector(".upload-progress");
    progress.hidden = false;
    request.upload.onprogress = (at) => (progress.querySelector("progress").value = (100 * at.loaded) / at.total);
    request.onload = () => {
      progress.hidden = true;
      if (request.status === 201) location.assign(request.getResponseHeader("location"));
      else if (request.status === 401) location.reload();
      else showMessage(request.responseText, false);
    };
    request.onerror = () => showMessage("The console does not respond. The file was not uploaded.", false);
    request.open("POST", form.action);
    request.setRequestHeader("HX-Request", "true");
    request.send(new FormData(form));
  });

  document.addEventListener("DOMContentLoaded", () => {
    showLocalTimes(document);
    updateSelection();
    for (const element of all("[data-refresh]")) startRefresh(element);
  });
})();
