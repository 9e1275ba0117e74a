// The list of tasks: select all of a page, a range with shift, and say how many are selected.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("changelist-form");
    const boxes = form ? [...form.querySelectorAll("input.dhara-select")] : [];
    if (!boxes.length) {
        return;
    }
    const toggle = document.getElementById("dhara-toggle");
    const across = form.querySelector("input[name=select_across]");
    const counter = form.querySelector(".dhara-counter");
    let last = null;

    function show() {
        const number = boxes.filter((box) => box.checked).length;
        const words = number === 0 ? counter.dataset.none : number === 1 ? counter.dataset.one : counter.dataset.many;
        counter.textContent = across.checked ? counter.dataset.all : words.replace("#", number);
        toggle.checked = number === boxes.length;
        toggle.indeterminate = number > 0 && number < boxes.length;
        boxes.forEach((box) => box.closest("tr").classList.toggle("selected", box.checked || across.checked));
        form.querySelector(".dhara-bar").classList.toggle("dhara-chosen", number > 0 || across.checked);
    }

    toggle.hidden = false;
    toggle.addEventListener("change", () => {
        boxes.forEach((box) => { box.checked = toggle.checked; });
        show();
    });
    across.addEventListener("change", show);
    boxes.forEach((box, place) => box.addEventListener("click", (event) => {
        if (event.shiftKey && last !== null) {
            const [from, to] = last < place ? [last, place] : [place, last];
            boxes.slice(from, to + 1).forEach((each) => { each.checked = box.checked; });
        }
        last = place;
        show();
    }));
    // The actions stand behind a hundred rows: from any of them it is one key, which would send the form without an action.
    form.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && event.target.type === "checkbox") {
            event.preventDefault();
            form.elements.action.focus();
        }
    });
    // A browser that goes back puts the boxes as they were, after this script has run.
    window.addEventListener("pageshow", show);
    show();
});
