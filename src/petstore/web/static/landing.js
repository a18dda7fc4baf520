// Show relative base addresses as full URLs, so that they can be copied.

for (const address of document.querySelectorAll("[data-address]"))
  address.textContent = new URL(address.textContent, document.baseURI).href;
