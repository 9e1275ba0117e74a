// A bulk change goes on while its page is open: each answer is shown, and the next step is asked for.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    const shown = document.getElementById("dhara-bulk");
    const failed = document.getElementById("dhara-failed");
    if (!shown) {
        return;
    }

    async function step(form) {
        const answer = await fetch(form.action, {
            method: "POST",
            body: new FormData(form),
            headers: {Accept: "application/json"},
            redirect: "error",
        });
        if (!answer.ok) {
            const {told} = await answer.json().catch(() => ({}));
            throw Object.assign(new Error(answer.status), {told});
        }
        return answer.json();
    }

    // While another browser makes a step, this one makes none and is answered at once: it waits before it asks again.
    const pause = () => new Promise((resolve) => { setTimeout(resolve, 500); });

    async function go() {
        let form = shown.querySelector("form[data-dhara-step]");
        let last = null;
        while (form) {
            const focused = document.activeElement && document.activeElement.closest("#dhara-bulk form");
            const wanted = focused ? focused.getAttribute("action") : null;
            const {html, stand} = await step(form);
            shown.innerHTML = html;
            if (wanted) {
                const again = shown.querySelector(`form[action="${wanted}"] button`);
                if (again) {
                    again.focus();
                }
            }
            form = shown.querySelector("form[data-dhara-step]");
            if (form && stand === last) {
                await pause();
            }
            last = stand;
        }
    }

    go().catch((error) => { failed.textContent = error.told || shown.dataset.failed; });
});
