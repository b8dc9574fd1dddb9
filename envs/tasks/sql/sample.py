"""A small built-in sample, for runs without data files.

The databases and questions were written for this project: three databases for training, one for validation and one for
testing.
"""

from __future__ import annotations

SCRIPTS = {
    "library": """
CREATE TABLE author (author_id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT);
CREATE TABLE book (book_id INTEGER PRIMARY KEY, title TEXT NOT NULL, author_id INTEGER, year INTEGER, pages INTEGER);
CREATE TABLE loan (loan_id INTEGER PRIMARY KEY, book_id INTEGER, reader TEXT, days INTEGER);
INSERT INTO author VALUES (1, 'Ada Berg', 'Norway'), (2, 'Ben Cho', 'Korea'), (3, 'Cleo Diaz', 'Spain'),
  (4, 'Dan Eze', 'Nigeria'), (5, 'Eva Faro', 'Spain');
INSERT INTO book VALUES (1, 'Tides', 1, 1999, 310), (2, 'Lanterns', 2, 2005, 120), (3, 'North', 1, 2010, 450),
  (4, 'The Ferry', 3, 2005, 220), (5, 'Salt', 4, 2018, 180), (6, 'Olives', 3, 2020, 260), (7, 'Gravel', 4, 1999, 95);
INSERT INTO loan VALUES (1, 1, 'Ina', 14), (2, 1, 'Joe', 30), (3, 3, 'Ina', 7), (4, 4, 'Kai', 21), (5, 6, 'Joe', 10),
  (6, 6, 'Lea', 28), (7, 6, 'Ina', 3), (8, 2, 'Kai', 14);
""",
    "shop": """
CREATE TABLE product (product_id INTEGER PRIMARY KEY, name TEXT NOT NULL, kind TEXT, price REAL);
CREATE TABLE customer (customer_id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE purchase (purchase_id INTEGER PRIMARY KEY, customer_id INTEGER, product_id INTEGER, amount INTEGER);
INSERT INTO product VALUES (1, 'kettle', 'kitchen', 35.5), (2, 'pan', 'kitchen', 22.0), (3, 'lamp', 'light', 48.0),
  (4, 'torch', 'light', 12.5), (5, 'chair', 'furniture', 89.0), (6, 'shelf', 'furniture', 60.0);
INSERT INTO customer VALUES (1, 'Mia', 'Oslo'), (2, 'Noah', 'Bergen'), (3, 'Olga', 'Oslo'), (4, 'Per', 'Tromso');
INSERT INTO purchase VALUES (1, 1, 1, 1), (2, 1, 4, 3), (3, 2, 3, 1), (4, 3, 5, 4), (5, 3, 2, 2), (6, 1, 6, 1),
  (7, 2, 4, 2);
""",
    "school": """
CREATE TABLE pupil (pupil_id INTEGER PRIMARY KEY, name TEXT NOT NULL, grade INTEGER);
CREATE TABLE course (course_id INTEGER PRIMARY KEY, title TEXT NOT NULL, teacher TEXT);
CREATE TABLE mark (pupil_id INTEGER, course_id INTEGER, points INTEGER);
INSERT INTO pupil VALUES (1, 'Rita', 7), (2, 'Sam', 8), (3, 'Tom', 7), (4, 'Uma', 9), (5, 'Vic', 8);
INSERT INTO course VALUES (1, 'Algebra', 'Wolf'), (2, 'Biology', 'Yilmaz'), (3, 'Chess', 'Wolf'), (4, 'Drama', 'Zorn');
INSERT INTO mark VALUES (1, 1, 12), (1, 2, 15), (2, 1, 9), (2, 3, 14), (3, 1, 15), (3, 3, 11), (4, 2, 13), (4, 3, 8);
""",
    "zoo": """
CREATE TABLE enclosure (enclosure_id INTEGER PRIMARY KEY, name TEXT NOT NULL, area REAL);
CREATE TABLE animal (
  animal_id INTEGER PRIMARY KEY, name TEXT NOT NULL, species TEXT, enclosure_id INTEGER, age INTEGER
);
INSERT INTO enclosure VALUES (1, 'Savanna', 900.0), (2, 'Pond', 120.5), (3, 'Aviary', 300.0), (4, 'Cave', 45.0);
INSERT INTO animal VALUES (1, 'Zed', 'zebra', 1, 6), (2, 'Gia', 'giraffe', 1, 11), (3, 'Dot', 'duck', 2, 2),
  (4, 'Pim', 'parrot', 3, 20), (5, 'Pam', 'parrot', 3, 4), (6, 'Zoe', 'zebra', 1, 3), (7, 'Otto', 'otter', 2, 5);
""",
    "railway": """
CREATE TABLE station (station_id INTEGER PRIMARY KEY, name TEXT NOT NULL, platforms INTEGER);
CREATE TABLE train (train_id INTEGER PRIMARY KEY, kind TEXT, seats INTEGER);
CREATE TABLE stop (train_id INTEGER, station_id INTEGER, minute INTEGER);
INSERT INTO station VALUES (1, 'Central', 12), (2, 'Harbour', 4), (3, 'Airport', 3), (4, 'Hill', 2), (5, 'Lake', 2);
INSERT INTO train VALUES (1, 'express', 420), (2, 'local', 180), (3, 'local', 160), (4, 'night', 240);
INSERT INTO stop VALUES (1, 1, 0), (1, 3, 18), (2, 1, 5), (2, 2, 14), (2, 4, 23), (3, 2, 7), (3, 4, 16), (3, 5, 31),
  (4, 1, 50);
""",
}
PARTS = {"library": "train", "shop": "train", "school": "train", "zoo": "validation", "railway": "test"}

QUESTIONS = (
    ("library", "How many books are there?", "SELECT COUNT(*) FROM book"),
    ("library", "Which titles were published in 2005?", "SELECT title FROM book WHERE year = 2005"),
    ("library", "List the names of all authors from Spain.", "SELECT name FROM author WHERE country = 'Spain'"),
    ("library", "List the titles of all books, the longest book first.", "SELECT title FROM book ORDER BY pages DESC"),
    ("library", "Which authors have no book? Give their names.",
     "SELECT name FROM author WHERE author_id NOT IN (SELECT author_id FROM book WHERE author_id IS NOT NULL)"),
    ("library", "For each title that was lent, how often was it lent?",
     "SELECT b.title, COUNT(*) FROM book b JOIN loan l ON b.book_id = l.book_id GROUP BY b.book_id"),
    ("shop", "What is the average price of a product?", "SELECT AVG(price) FROM product"),
    ("shop", "Which products cost more than 40? Give their names.", "SELECT name FROM product WHERE price > 40"),
    ("shop", "How many customers live in each city?", "SELECT city, COUNT(*) FROM customer GROUP BY city"),
    ("shop", "Which different cities do customers live in?", "SELECT DISTINCT city FROM customer"),
    ("shop", "Which customers bought a product of the kind 'light'? Give each name once.",
     "SELECT DISTINCT c.name FROM customer c JOIN purchase u ON c.customer_id = u.customer_id "
     "JOIN product p ON p.product_id = u.product_id WHERE p.kind = 'light'"),
    ("shop", "What is the total value of all purchases?",
     "SELECT SUM(u.amount * p.price) FROM purchase u JOIN product p ON p.product_id = u.product_id"),
    ("school", "How many pupils are in grade 7?", "SELECT COUNT(*) FROM pupil WHERE grade = 7"),
    ("school", "Which courses does Wolf teach? Give the titles.", "SELECT title FROM course WHERE teacher = 'Wolf'"),
    ("school", "What is the highest number of points in any mark?", "SELECT MAX(points) FROM mark"),
    ("school", "List names and grades of all pupils, ordered by name.", "SELECT name, grade FROM pupil ORDER BY name"),
    ("zoo", "How many animals are parrots?", "SELECT COUNT(*) FROM animal WHERE species = 'parrot'"),
    ("zoo", "List the names of all animals, the youngest first.", "SELECT name FROM animal ORDER BY age"),
    ("zoo", "Which enclosures are empty? Give their names.",
     "SELECT name FROM enclosure WHERE enclosure_id NOT IN "
     "(SELECT enclosure_id FROM animal WHERE enclosure_id IS NOT NULL)"),
    ("zoo", "What is the average age of each species?", "SELECT species, AVG(age) FROM animal GROUP BY species"),
    ("zoo", "Which enclosures are larger than 200? Give name and area.",
     "SELECT name, area FROM enclosure WHERE area > 200"),
    ("railway", "How many seats do all trains have together?", "SELECT SUM(seats) FROM train"),
    ("railway", "List the names of all stations, the one with the most platforms first.",
     "SELECT name FROM station ORDER BY platforms DESC"),
    ("railway", "Which stations have fewer than 4 platforms? Give their names.",
     "SELECT name FROM station WHERE platforms < 4"),
    ("railway", "How many stops does each train make? Give its number.",
     "SELECT train_id, COUNT(*) FROM stop GROUP BY train_id"),
    ("railway", "Which kinds of train stop at Central? Give each kind once.",
     "SELECT DISTINCT t.kind FROM train t JOIN stop s ON t.train_id = s.train_id "
     "JOIN station n ON n.station_id = s.station_id WHERE n.name = 'Central'"),
)  # fmt: skip
