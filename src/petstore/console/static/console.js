// Page behaviour: refresh, local times, dialogs, copying, selection and upload progress.
// Every page also works without scripts.
"use strict";

(() => {
  const all = (selector, root = document) => root.querySelectorAll(selector);
  const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "short" });
  const withZone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const relative = new Intl.RelativeTimeFormat("en", { numeric: "always" });
  const units = [["year", 31_536_000], ["month", 2_592_000], ["day", 86_400], ["hour", 3600], ["minute", 60], ["second", 1]];
  // Use the console's clock, because the browser's clock might be wrong.
  const clockOffset = 1000 * document.body.dataset.now - Date.now();

  function fromNow(at) {
    const seconds = Math.round((at - Date.now() - clockOffset) / 1000);
    const [unit, length] = units.find(([, length]) => Math.abs(seconds) >= length) ?? units.at(-1);
    return seconds ? relative.format(Math.trunc(seconds / length), unit) : "now";
  }

  function showTimes(root) {
    for (const time of all("time[datetime]", root)) {
      const at = new Date(time.dateTime);
      const text = time.dataset.style === "relative" ? fromNow(at) : absolute.format(at);
      if (time.textContent !== text) time.textContent = text;
      time.title ||= `${withZone.format(at)} · ${time.dateTime}`;
    }
  }

  // If the message is an error from a refresh, the next successful refresh removes it.
  function showMessage(text, ok, ofRefresh = false) {
    const line = document.createElement("p");
    line.toggleAttribute("data-of-refresh", ofRefresh);
    line.className = "message " + (ok ? "ok" : "error");
    line.textContent = text;
    document.getElementById("messages").replaceChildren(line);
  }

  // Elements with data-refresh reload their content periodically while the page is visible.
  function startRefresh(element) {
    setInterval(() => {
      if (document.visibilityState === "visible" && !document.querySelector("dialog[open]")) htmx.trigger(element, "refresh");
    }, 1000 * element.dataset.refresh);
  }

  // After a swap, reopen the details elements that were open, and reselect the animals that are still in the table.
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
  // Swap the list of problems only if it has changed. Otherwise, screen readers would announce it every few seconds.
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    const { target, fragment } = event.detail;
    if (target.id === "troubles" && target.textContent.trim() === fragment.textContent.trim()) event.detail.shouldSwap = false;
  });
  document.addEventListener("htmx:load", (event) => showTimes(event.target));

  const isRefresh = (event) => event.target.matches("[data-refresh]");
  document.addEventListener("htmx:afterRequest", (event) => {
    if (isRefresh(event) && event.detail.successful) document.querySelector("#messages [data-of-refresh]")?.remove();
  });
  document.addEventListener("htmx:responseError", (event) => {
    const text = event.detail.xhr.getResponseHeader("content-type")?.startsWith("text/plain") && event.detail.xhr.responseText;
    showMessage(text || "The request failed. Reload the page and try again.", false, isRefresh(event));
  });
  document.addEventListener("htmx:sendError", (event) =>
    showMessage("The console is not responding. This page might be out of date.", false, isRefresh(event)));

  function updateSelection() {
    const count = all("#rows input:checked").length;
    for (const box of all("[data-select-all]")) box.checked = count > 0 && count === all("#rows input[type=checkbox]").length;
    for (const label of all("[data-selected-count]")) label.textContent = count ? `Change ${count} selected to` : "Change selected to";
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
    if (copy) await copyText(copy);
    const close = event.target.closest("dialog [data-close]");
    if (close) {
      event.preventDefault();
      close.closest("dialog").close();
    }
  });

  // The button copies the text of the element named in data-copy, or its own text.
  async function copyText(button) {
    const source = button.dataset.copy ? document.getElementById(button.dataset.copy) : button;
    let result = "Copied";
    try {
      await navigator.clipboard.writeText(source.textContent.trim());
    } catch {
      getSelection().selectAllChildren(source);
      result = "Press Ctrl+C";
    }
    document.getElementById("announcements").textContent = result;
    if (source === button) {
      button.dataset.copied = result;
      setTimeout(() => delete button.dataset.copied, 2000);
    } else {
      button.textContent = result;
    }
  }

  document.addEventListener("keydown", (event) => {
    const search = document.querySelector("input[type=search]");
    const isTyping = event.target.closest("input, select, textarea, dialog[open]");
    if (event.key === "/" && search && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  });

  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
    // Export the results of the current search. A search does not reload the page, so the hidden fields can be stale.
    if (event.target.matches("form[data-filtered]")) {
      for (const field of all("input[type=hidden]", event.target)) field.value = document.querySelector(`.filter [name=${field.name}]`).value;
    }
  });

  // Upload the file with a script, because a plain form shows no progress. The response's Location header is the address
  // of the job's page.
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
    request.onerror = () => showMessage("The console is not responding. The file was not uploaded.", false);
    request.open("POST", form.action);
    request.setRequestHeader("HX-Request", "true");
    request.send(new FormData(form));
  });

  document.addEventListener("DOMContentLoaded", () => {
    showTimes(document);
    setInterval(() => showTimes(document), 10_000);
    updateSelection();
    for (const element of all("[data-refresh]")) startRefresh(element);
  });
})();
