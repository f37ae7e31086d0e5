"""placeholder while the tables come up"""
from __future__ import annotations
from textual.containers import Vertical
from tui.model import Shown
class ChatView(Vertical):
    key_words = ()
    def __init__(self) -> None:
        super().__init__(id="chat")
    def show(self, shown: Shown) -> None: ...
    def take_focus(self) -> None: ...
