"""The barrier: the script starts when the network is up, and not before; who waits is told what is missing."""

import time
from typing import Any, Dict, Optional

from virtcloud.pbs.hooks.agent import AgentAway, AgentRefused
from virtcloud.pbs.hooks.faults import Passing, Unwanted
from virtcloud.pbs.hooks.mom_event import MomEvent

ASK_S = 10.0
"""The agent answers sooner when something changes."""
PAUSE_S = 0.5
AWAY_S = 60.0
"""So long an agent may be away, as when it is upgraded."""
BUSY = "too-many-requests"


def until_up(event: MomEvent) -> None:
    """Return when the network is up; raises Unwanted or Passing with the reason when it will not be."""
    waiting = _Waiting(event)
    try:
        while not waiting.over():
            waiting.ask()
    except KeyboardInterrupt:
        # PBS's alarm. A MoM kills its hooks at that very moment; elsewhere there may be time for a word.
        raise Passing("the hook's alarm rang while the network was being made: %s" % waiting.missing) from None


class _Waiting:
    """What was heard last, and how long there is still to wait."""

    def __init__(self, event: MomEvent) -> None:
        self._event, self._run = event, event.run
        self._began = event.clock()
        self._heard = self._began
        self._up = False
        self.missing = "nothing is known of it yet"

    def over(self) -> bool:
        """Say whether it is up; raises when patience is over."""
        if not self._up and self._left() <= 0:
            raise Passing("the network is not up after %d s: %s" % (self._event.settings.patience, self.missing))
        return self._up

    def ask(self) -> None:
        """Ask once, and make of it what there is to be made."""
        answer = self._answer()
        if answer is None:
            time.sleep(min(PAUSE_S, max(0.0, self._left())))
            return
        state, reason = answer.get("state"), str(answer.get("reason") or "no reason is given")
        if state == "up":
            self._up = True
            self._event.note("the network is up after %d s" % (self._event.clock() - self._began))
        elif state == "cancelled":
            raise Unwanted(reason)
        elif state == "waiting":
            self._note("; ".join(answer.get("missing") or []) or "nothing is said to be missing")
        else:
            raise Passing("the network could not be made: %s" % reason)

    def _answer(self) -> Optional[Dict[str, Any]]:
        try:
            answer = self._event.about("state", self._run, wait=min(ASK_S, max(0.0, self._left())))
        except AgentAway as error:
            if self._event.clock() - self._heard > AWAY_S:
                raise Passing(self._event.here(error)) from error
            self._note(self._event.here(error))
            return None
        except AgentRefused as error:
            if error.slug == BUSY:
                return None
            raise Passing(self._event.here(error)) from error
        self._heard = self._event.clock()
        return answer

    def _left(self) -> float:
        return self._event.settings.patience - (self._event.clock() - self._began)

    def _note(self, missing: str) -> None:
        """Say what is missing, once."""
        if missing != self.missing:
            self.missing = missing
            self._event.note("waits for the network: " + missing)
