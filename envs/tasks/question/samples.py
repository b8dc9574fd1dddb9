"""Small built-in samples of questions, for runs without data files.

The rows were written for this project. Each sample has twelve rows for training, six for validation and six for test.
"""

from __future__ import annotations


def _parts(rows: list[dict]) -> dict[str, list[dict]]:
    return {"train": rows[:12], "validation": rows[12:18], "test": rows[18:]}


QUESTIONS = _parts([
    {"question": question, "answer": answer}
    for question, answer in (
        ("Which season comes after spring?", "summer"),
        ("What is the opposite of north?", "south"),
        ("Which day comes before Thursday?", "Wednesday"),
        ("What do bees make?", "honey"),
        ("Which animal barks?", "dog"),
        ("What colour do blue and yellow paint make?", "green"),
        ("Which planet do we live on?", "Earth"),
        ("What is frozen water called?", "ice"),
        ("Which month comes first in the year?", "January"),
        ("What is the young of a cat called?", "kitten"),
        ("What is the capital of France?", "Paris"),
        ("How many legs does a spider have?", "8"),
        ("Which month comes after July?", "August"),
        ("What is the opposite of empty?", "full"),
        ("What is the young of a dog called?", "puppy"),
        ("What is the capital of Italy?", "Rome"),
        ("How many days does a week have?", "7"),
        ("Which animal gives us wool?", "sheep"),
        ("Which day comes after Monday?", "Tuesday"),
        ("What is the opposite of early?", "late"),
        ("What is the capital of Spain?", "Madrid"),
        ("How many sides does a triangle have?", "3"),
        ("What colour do red and white paint make?", "pink"),
        ("What is the young of a cow called?", "calf"),
    )
])  # fmt: skip

NLI = _parts([
    {"premise": premise, "hypothesis": hypothesis, "label": label}
    for premise, hypothesis, label in (
        ("Anna bought three apples and two pears.", "Anna bought fruit.", "entailment"),
        ("Anna bought three apples and two pears.", "Anna bought no pears.", "contradiction"),
        ("Anna bought three apples and two pears.", "Anna paid by card.", "neutral"),
        ("The bridge was closed for repairs all summer.", "Nobody could cross the bridge in July.", "entailment"),
        ("The bridge was closed for repairs all summer.", "Cars used the bridge every day in July.", "contradiction"),
        ("The bridge was closed for repairs all summer.", "The repairs cost a million.", "neutral"),
        ("Every pupil in the class passed the test.", "No pupil in the class failed.", "entailment"),
        ("Every pupil in the class passed the test.", "Half of the class failed.", "contradiction"),
        ("Every pupil in the class passed the test.", "The test was about history.", "neutral"),
        ("The train to Lyon left at noon, an hour late.", "The train should have left at eleven.", "entailment"),
        ("The train to Lyon left at noon, an hour late.", "The train was on time.", "contradiction"),
        ("The train to Lyon left at noon, an hour late.", "Snow had delayed the train.", "neutral"),
        ("Two dogs sleep under the kitchen table.", "There are animals in the kitchen.", "entailment"),
        ("Two dogs sleep under the kitchen table.", "The dogs are running in the garden.", "contradiction"),
        ("Two dogs sleep under the kitchen table.", "The dogs are brothers.", "neutral"),
        ("The novel was written before the author turned twenty.", "The author was young then.", "entailment"),
        ("The novel was written before the author turned twenty.", "He wrote it when he was sixty.", "contradiction"),
        ("The novel was written before the author turned twenty.", "The novel sold well.", "neutral"),
        ("It has rained on each of the last five days.", "It rained yesterday.", "entailment"),
        ("It has rained on each of the last five days.", "The last week was dry throughout.", "contradiction"),
        ("It has rained on each of the last five days.", "It will rain tomorrow.", "neutral"),
        ("The museum is free for children under twelve.", "A child of six need not pay.", "entailment"),
        ("The museum is free for children under twelve.", "Children of six pay full price.", "contradiction"),
        ("The museum is free for children under twelve.", "The museum is near the station.", "neutral"),
    )
])  # fmt: skip

CHOICES = _parts([
    {"question": question, "choices": list(choices), "answer": answer}
    for question, choices, answer in (
        ("Which gas do plants take in to make sugar?", ("oxygen", "carbon dioxide", "helium", "neon"), "B"),
        ("What does a thermometer measure?", ("temperature", "weight", "speed", "length"), "A"),
        ("Which of these is a mammal?", ("a trout", "a frog", "a sparrow", "a whale"), "D"),
        ("What pulls an apple to the ground?", ("wind", "light", "gravity", "sound"), "C"),
        ("Which part of a plant takes up water?", ("the root", "the petal", "the fruit", "the seed"), "A"),
        ("What happens to most metals when they are heated?", ("they shrink", "they expand", "they vanish"), "B"),
        ("Which organ pumps blood?", ("the lung", "the liver", "the heart", "the skin"), "C"),
        ("What is the centre of our solar system?", ("the Moon", "Mars", "the Earth", "the Sun"), "D"),
        ("Which of these conducts electricity best?", ("wood", "copper", "glass", "rubber"), "B"),
        ("Into what does a tadpole grow?", ("a frog", "a snake", "a fish", "a newt's egg"), "A"),
        ("Which form of water is a gas?", ("ice", "snow", "steam", "rain"), "C"),
        ("What do we call an animal that eats only plants?", ("a carnivore", "a scavenger", "a herbivore"), "C"),
        ("Which force slows a sliding box?", ("friction", "magnetism", "buoyancy", "tension"), "A"),
        ("What does the Earth turn around once a day?", ("the Sun", "its axis", "the Moon", "Venus"), "B"),
        ("Which sense uses the tongue?", ("sight", "hearing", "touch", "taste"), "D"),
        ("What do roots, stem and leaves belong to?", ("a plant", "an insect", "a bird", "a fish"), "A"),
        ("Which of these is a source of light?", ("a mirror", "a candle", "the Moon", "a window"), "B"),
        ("What is stored in a battery?", ("heat", "sound", "chemical energy", "light"), "C"),
        ("Which gas do animals need to breathe?", ("oxygen", "argon", "neon", "hydrogen"), "A"),
        ("What causes day and night?", ("clouds", "tides", "seasons", "the turning of the Earth"), "D"),
        ("Which of these is magnetic?", ("plastic", "iron", "paper", "silver"), "B"),
        ("What covers the body of a bird?", ("scales", "fur", "feathers", "shells"), "C"),
        ("At sea level, pure water boils at how many degrees Celsius?", ("0", "50", "100", "150"), "C"),
        ("Which of these can make an echo?", ("a cliff", "a pillow", "a curtain", "a carpet"), "A"),
    )
])  # fmt: skip
