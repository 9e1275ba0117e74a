/* The page of one task: it looks again by itself until the task has ended, and copies. Without this all of it can be
   read. */
'use strict';
{
    // Parts with data-dhara-refresh are fetched anew until they come without it. Nothing is asked while the tab is hidden.
    const FAILED_SECONDS = 10;

    const seen = () => new Promise((resolve) => {
        if (!document.hidden) {
            resolve();
            return;
        }
        document.addEventListener('visibilitychange', function look() {
            if (!document.hidden) {
                document.removeEventListener('visibilitychange', look);
                resolve();
            }
        });
    });

    const pause = (seconds) => new Promise((resolve) => { setTimeout(resolve, seconds * 1000); });

    const fetched = async (address) => {
        const response = await fetch(address, {credentials: 'same-origin', cache: 'no-store'});
        if (response.redirected || [403, 404].includes(response.status)) {
            return null; // logged out, not allowed any more, or gone
        }
        if (!response.ok) {
            throw new Error(response.statusText);
        }
        return new DOMParser().parseFromString(await response.text(), 'text/html');
    };

    // A task that has gone on to something else has another state, other buttons and another story.
    const renew = async () => {
        const page = await fetched(location.href);
        for (const part of page ? ['.dhara-title', '#content-main'] : []) {
            dharaMorph(document.querySelector(part), page.querySelector(part));
        }
        prepare();
        return page;
    };

    const look = async (part) => {
        const page = await fetched(part.dataset.dharaRefresh);
        const next = page && page.querySelector('[class^=dhara-]');
        if (next && next.dataset.dharaMark !== part.dataset.dharaMark) {
            return renew();
        }
        if (next) {
            dharaMorph(part, next);
            prepare();
        }
        return next;
    };

    const follow = async (part) => {
        let seconds = Number(part.dataset.dharaSeconds);
        while (part.isConnected && part.dataset.dharaRefresh) {
            await pause(seconds);
            await seen();
            try {
                if (await look(part) === null) {
                    return;
                }
                seconds = Number(part.dataset.dharaSeconds || seconds);
            } catch {
                seconds = FAILED_SECONDS;
            }
        }
    };

    // Copying. Where the browser forbids it, the text is selected for the reader to copy.
    const text = (source) => {
        const parts = source.matches('pre') ? [source] : [...source.querySelectorAll('pre')];
        return parts.map((part) => part.textContent).join('');
    };

    const whole = async (button, source) => {
        if (!button.dataset.dharaWhole) {
            return text(source);
        }
        const response = await fetch(button.dataset.dharaWhole, {credentials: 'same-origin'});
        if (!response.ok || response.redirected) {
            throw new Error(response.statusText);
        }
        return response.text();
    };

    const select = (source) => {
        for (let part = source.parentElement; part; part = part.parentElement) {
            if (part.matches('details')) {
                part.open = true;
            }
        }
        source.querySelectorAll('details').forEach((part) => { part.open = true; });
        getSelection().selectAllChildren(source);
        source.focus();
    };

    const say = (button, sign) => {
        const label = button.textContent;
        button.textContent = `${label} ${sign}`;
        setTimeout(() => { button.textContent = label; }, 1500);
    };

    const copy = async (button) => {
        const source = document.getElementById(button.dataset.dharaCopy);
        try {
            await navigator.clipboard.writeText(await whole(button, source));
            say(button, '✓');
        } catch {
            select(source);
            say(button, '…');
        }
    };

    // Buttons that are of no use without a script are hidden until there is one.
    const prepare = () => {
        document.querySelectorAll('[data-dhara-copy]').forEach((button) => { button.hidden = false; });
    };

    document.addEventListener('DOMContentLoaded', () => {
        prepare();
        document.addEventListener('click', (event) => {
            const button = event.target.closest('[data-dhara-copy]');
            if (button) {
                copy(button);
            }
        });
        document.querySelectorAll('[data-dhara-refresh]').forEach(follow);
    });
}
