#!/usr/bin/env python3
"""Writes stories.txt: short harbour stories, one a line, from sentences written for this project.

    python3 make-stories.py > stories.txt

The same file comes out on every run and every Python 3 (the generator below is a plain linear
congruence). A story keeps its person, thing and place from sentence to sentence, so that a model
can learn from far-away words, and what is done depends on the weather, so that it can learn from
near ones.
"""

import sys

STORIES = 640

PEOPLE = [
    ("Mira", "she", "her"), ("Tomas", "he", "his"), ("Old Brandt", "he", "his"),
    ("Ilse", "she", "her"), ("the ferry pilot", "she", "her"), ("the baker", "he", "his"),
    ("Anselm", "he", "his"), ("the clock mender", "she", "her"), ("Petra", "she", "her"),
    ("the lamp keeper", "he", "his"), ("Jonne", "he", "his"), ("the net maker", "she", "her"),
]
# A thing, what is done to it, and what it does when all is well.
THINGS = [
    ("rowing boat", "tarred", "lay dry on the shingle"),
    ("brass bell", "polished", "rang clear across the water"),
    ("lantern", "filled", "burned until the morning"),
    ("blue net", "mended", "came up heavy with herring"),
    ("barrel of salt", "rolled indoors", "stayed as dry as flour"),
    ("church clock", "wound", "struck the hours again"),
    ("anchor chain", "greased", "ran out without a sound"),
    ("smoke house", "swept", "smelled of birch and fish"),
    ("oven", "heated", "gave forty loaves before dawn"),
    ("weather vane", "straightened", "pointed to the north"),
    ("sail", "patched", "filled with the first wind"),
    ("copper kettle", "scoured", "sang on the stove"),
]
PLACES = [
    "at the end of the long pier", "behind the customs house", "under the lighthouse",
    "beside the old mill", "near the fish market", "on the hill above the bay",
    "in the yard of the chandler", "by the stone bridge", "on the island of gulls",
]
# The weather, and what people do in it.
WEATHERS = [
    ("fog", "the fog came in from the sea", "nobody could see the far shore",
     "the boats stayed in the harbour"),
    ("storm", "the storm broke over the roofs", "the waves climbed the harbour wall",
     "everyone carried sand to the doors"),
    ("calm", "the sea lay flat as a plate", "the gulls slept on the posts",
     "the children swam out to the buoy"),
    ("frost", "the frost drew ferns on the windows", "the ropes were stiff as wood",
     "the neighbours shared their coal"),
    ("rain", "the rain fell straight and warm", "the gutters ran like brooks",
     "the market moved under the arches"),
    ("wind", "the wind turned to the west", "the flags stood out from their poles",
     "the fleet went out before noon"),
]
TIMES = [
    "One morning in {m}", "Late in {m}", "On the first Sunday of {m}", "Every evening that {m}",
    "On the last day of {m}", "Early in {m}",
]
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
]
OPENINGS = [
    "{time}, {who} went to the {thing} {place}.",
    "{time}, {who} found the {thing} {place}.",
    "{time}, {who} had promised to look after the {thing} {place}.",
    "{time}, somebody told {who} about the {thing} {place}.",
]
TROUBLES = [
    "It had been forgotten since the winter.",
    "It was older than anyone in the village.",
    "{Poss} mother had cared for it before.",
    "It did not look like much.",
    "Nobody else wanted the work.",
    "{He} knew every mark on it.",
]
SKIES = ["{Sky}, and {effect}.", "Then {sky}, so that {effect}.", "That day {sky}."]
WORKS = [
    "{He} took {poss} time, and by noon the {thing} was {done}.",
    "{He} worked with {poss} sleeves rolled up until the {thing} was {done}.",
    "With a friend from the {trade} {he} saw to it that the {thing} was {done}.",
    "{He} asked for no money, and the {thing} was {done} all the same.",
]
TRADES = ["rope walk", "fish market", "pilot station", "school", "boat yard", "post office"]
ENDINGS = [
    "After that the {thing} {well}.",
    "Since then the {thing} {well}, and {who} tells the story to anyone who asks.",
    "When the work was over the {thing} {well}, and {he} went home.",
    "\"Now it will do,\" said {who}, and the {thing} {well}.",
]
CUSTOMS = [
    "As always in the {weather}, {custom}.",
    "Because of the {weather}, {custom}.",
    "It was the kind of {weather} in which {custom}.",
]


class Dice:
    """Knuth's MMIX linear congruence; the high bits are used."""

    def __init__(self, seed):
        self.state = seed

    def pick(self, items):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return items[(self.state >> 33) * len(items) >> 31]


def capital(text):
    return text[0].upper() + text[1:]


def story(dice):
    who, he, poss = dice.pick(PEOPLE)
    thing, done, well = dice.pick(THINGS)
    weather, sky, effect, custom = dice.pick(WEATHERS)
    words = {
        "who": who, "he": he, "poss": poss, "He": capital(he), "Poss": capital(poss),
        "thing": thing, "done": done, "well": well, "place": dice.pick(PLACES),
        "weather": weather, "sky": sky, "Sky": capital(sky), "effect": effect, "custom": custom,
        "trade": dice.pick(TRADES), "time": dice.pick(TIMES).format(m=dice.pick(MONTHS)),
    }
    parts = [dice.pick(OPENINGS), dice.pick(TROUBLES), dice.pick(SKIES)]
    if dice.pick([True, True, False]):
        parts.append(dice.pick(CUSTOMS))
    parts += [dice.pick(WORKS), dice.pick(ENDINGS)]
    return " ".join(capital(part.format(**words)) for part in parts)


def main():
    dice = Dice(2506)
    seen = set()
    while len(seen) < STORIES:
        text = story(dice)
        if text not in seen:
            seen.add(text)
            sys.stdout.write(text + "\n")


main()
