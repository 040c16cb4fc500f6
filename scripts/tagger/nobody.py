# ruff: noqa: E501, SIM905 (lists of words)
# fmt: off
"""Clean text that looks like names: products, works, fields, the long dead, headings, code, quantities; and sentences
to put them in. What a slot is filled with here is nobody's.
"""

from __future__ import annotations

import random
import re

from tagger import asks

PRODUCTS = """Python;Java;JavaScript;TypeScript;Rust;Go;Kotlin;Swift;Ruby;Perl;Haskell;Scala;Julia;MATLAB;Fortran;COBOL;Lua;Elixir;Clojure;
Erlang;PHP;Visual Basic;VBA;C++;C#;Objective-C;Assembly;Solidity;Verilog;Excel;Microsoft Word;PowerPoint;Outlook;Photoshop;Illustrator;
Google Sheets;Google Docs;Google Maps;Google Drive;Gmail;YouTube;Facebook;Instagram;Twitter;LinkedIn;Reddit;TikTok;WhatsApp;Telegram;Discord;
Slack;Zoom;Microsoft Teams;Notion;Trello;Jira;Confluence;GitHub;GitLab;Bitbucket;Stack Overflow;Wikipedia;Netflix;Spotify;Amazon;eBay;Etsy;
Shopify;WordPress;Wix;Salesforce;SAP;Oracle;Tableau;Power BI;QuickBooks;Stripe;PayPal;Windows;Windows 11;macOS;iOS;Android;Linux;Ubuntu;
Debian;Fedora;Arch Linux;Red Hat;Docker;Docker Compose;Kubernetes;Helm;Terraform;Ansible;Jenkins;GitHub Actions;Prometheus;Grafana;Nginx;
Apache;Apache Kafka;Apache Spark;Hadoop;Airflow;Snowflake;BigQuery;Redshift;PostgreSQL;MySQL;SQLite;MongoDB;Redis;Cassandra;Elasticsearch;
Neo4j;DynamoDB;Firebase;Supabase;Django;Flask;FastAPI;Spring Boot;Hibernate;Maven;Gradle;Ruby on Rails;Laravel;Symfony;React;React Native;
Next.js;Vue;Angular;Svelte;Node.js;Express;jQuery;Bootstrap;Tailwind;Material UI;Redux;Webpack;Vite;GraphQL;REST;gRPC;Unity;Unreal Engine;
Godot;Blender;AutoCAD;SolidWorks;Arduino;Raspberry Pi;ESP32;Bluetooth;Wi-Fi;Ethernet;TensorFlow;PyTorch;Keras;NumPy;Pandas;Matplotlib;
SciPy;Scikit-learn;Jupyter;OpenCV;Hugging Face;LangChain;ChatGPT;GPT-4;OpenAI;Claude;Gemini;Llama;Mistral;Midjourney;Stable Diffusion;
DALL-E;AWS;AWS Lambda;Amazon EC2;Amazon S3;CloudFront;Azure;Azure DevOps;Google Cloud;Cloudflare;Heroku;Vercel;Netlify;Xbox;PlayStation;
Nintendo Switch;Steam;iPhone;iPad;MacBook;Apple Watch;Galaxy;Pixel;Kindle;Alexa;Siri;Tesla;Toyota Corolla;Ford Mustang;Boeing 747;Airbus A380;
Coca-Cola;Lego;Barbie;Nike;Adidas;Starbucks;Bitcoin;Ethereum;Dogecoin;VS Code;IntelliJ;Eclipse;Xcode;Android Studio;Vim;Emacs;Postman;
Selenium;Playwright;Cypress;JUnit;Pytest;Mockito;LaTeX;Overleaf;Markdown;Figma;Canva;OBS;FFmpeg;Roblox;Minecraft;Fortnite;Pokemon;
Dungeons & Dragons;Chess;Monopoly;Scrabble;Sudoku;Excel VBA;Power Query;Google Analytics;Google Ads;SEMrush;Mailchimp;HubSpot;Zapier;Airtable"""
WORKS = """Hamlet;Macbeth;Romeo and Juliet;The Great Gatsby;Moby Dick;War and Peace;Crime and Punishment;Don Quixote;The Odyssey;The Iliad;
The Lord of the Rings;Harry Potter;Star Wars;Star Trek;The Matrix;Inception;Titanic;The Godfather;Game of Thrones;Breaking Bad;
The Simpsons;Friends;Doctor Who;Sherlock Holmes;Frankenstein;Dracula;Alice in Wonderland;Animal Farm;Brave New World;Jane Eyre;
Wuthering Heights;Les Misérables;The Hobbit;The Little Prince;The Art of War;The Wealth of Nations;The Communist Manifesto;
The Starry Night;Mona Lisa;Bohemian Rhapsody;Swan Lake;The Nutcracker;Super Mario;The Legend of Zelda;Final Fantasy;Dark Souls;
The Witcher;Skyrim;Warcraft;Naruto;One Piece;Dragon Ball;Spider-Man;Batman;Superman;Iron Man;The Avengers;Toy Story;Frozen;The Lion King"""
THE_DEAD = """Einstein;Albert Einstein;Newton;Isaac Newton;Galileo;Darwin;Charles Darwin;Aristotle;Plato;Socrates;Confucius;Shakespeare;
William Shakespeare;Mozart;Beethoven;Bach;Leonardo da Vinci;Michelangelo;Picasso;Van Gogh;Napoleon;Julius Caesar;Cleopatra;Gandhi;
Abraham Lincoln;George Washington;Winston Churchill;Marie Curie;Nikola Tesla;Alan Turing;Ada Lovelace;Euler;Gauss;Euclid;Pythagoras;
Archimedes;Descartes;Kant;Hegel;Nietzsche;Marx;Karl Marx;Freud;Jung;Homer;Dante;Goethe;Tolstoy;Dostoevsky;Hemingway;Jane Austen;
Charles Dickens;Mark Twain;Edgar Allan Poe;Virginia Woolf;Kafka;Orwell;Tolkien;Zeus;Athena;Apollo;Thor;Odin;Buddha;Jesus;Moses;Muhammad"""
FIELDS = """Machine Learning;Deep Learning;Artificial Intelligence;Data Science;Computer Science;Natural Language Processing;Big Data;
Cloud Computing;Cyber Security;Blockchain;Internet of Things;Quantum Mechanics;Linear Algebra;Calculus;Number Theory;Game Theory;
Organic Chemistry;Molecular Biology;Civil Engineering;Supply Chain Management;Project Management;Human Resources;Customer Success;
Digital Marketing;Content Marketing;Search Engine Optimization;Public Relations;Corporate Finance;Financial Accounting;Risk Management;
International Relations;Political Science;Social Studies;Art History;Creative Writing;Modern Philosophy;Buddhism;Christianity;Islam;
Hinduism;Judaism;Stoicism;Marxism;Capitalism;Keynesian;Bayesian;Gaussian;Euclidean;Boolean;Fibonacci;Fourier;Laplace;Markov;Poisson;
Agile;Scrum;Kanban;Lean;Six Sigma;DevOps;OKR;KPI;SWOT;PESTLE;GDPR;HIPAA;ISO 27001;SOX;IFRS;GAAP;CAPM;ROI;EBITDA;B2B;SaaS;MVP;UX;UI;SEO;CRM;ERP"""
EVENTS = """World War II;World War I;the Cold War;the French Revolution;the Industrial Revolution;the American Civil War;the Roman Empire;
the Middle Ages;the Renaissance;the Great Depression;the Olympic Games;the World Cup;the Super Bowl;Christmas;Easter;Halloween;Ramadan;
Thanksgiving;Black Friday;New Year's Eve;Valentine's Day;COVID-19;the Nobel Prize;the European Union;the United Nations;NATO;the Supreme Court;
the Bill of Rights;the Constitution;Congress;Parliament;the Federal Reserve;the Big Bang;the Milky Way;Mars;Venus;Jupiter;the Moon;the Sun;
the Bible;the Quran;the Torah;Latin;Sanskrit;the Stone Age;the Silk Road;the Black Death;Brexit;the Ottoman Empire;the Victorian era"""
LANGUAGES = """English French German Spanish Italian Portuguese Russian Chinese Mandarin Japanese Korean Arabic Hindi Turkish Dutch Polish
Swedish Greek Latin Hebrew Vietnamese Thai Bengali Urdu Persian Ukrainian Czech Hungarian Finnish Danish Norwegian Indonesian Swahili""".split()
HEADINGS = """Executive Summary;Terms and Conditions;Table of Contents;Related Work;Results and Discussion;Materials and Methods;Next Steps;
Key Takeaways;Learning Objectives;Case Study;Pros and Cons;Frequently Asked Questions;Getting Started;User Stories;Acceptance Criteria;
Roles and Responsibilities;Job Description;Required Skills;Work Experience;Education;References;Cover Letter;Business Plan;Marketing Strategy;
Competitive Analysis;Target Audience;Call to Action;Meta Description;Blog Post;Product Description;Lesson Plan;Multiple Choice;True or False;
Question;Answer;Context;Instructions;Constraints;Example;Examples;Input;Output;Note;Important;Warning;Task;Role;Goal;Format;Tone;Style;
System;User;Assistant;Human;Step 1;Step 2;Part A;Section 3;Chapter 4;Figure 2;Table 1;Appendix;Introduction;Conclusion;Abstract;Summary"""
ROLES = """Software Engineer;Data Scientist;Product Manager;Customer Support Manager;Chief Executive Officer;Sales Manager;Human Resources Officer;
Technical Writer;Travel Guide;English Translator;Linux Terminal;JavaScript Console;Math Teacher;Career Counselor;Life Coach;Stand-up Comedian;
Storyteller;Novelist;Screenwriter;Poet;Football Commentator;Motivational Speaker;Debate Coach;Accountant;Financial Analyst;UX Designer;
Full Stack Developer;Machine Learning Engineer;Cyber Security Specialist;Recruiter;Dietician;Personal Trainer;Chef;Doctor;Lawyer;Plumber"""

SENTENCES = """How do I export a report from {product} to {product}?
Write a {product} script that reads a CSV file and prints the {common} column.
I get an error in {product} when I call `{code}`. How can I fix it?
Compare {product} and {product} for a small team.
What is the difference between {product} and {product}?
You are an expert in {field} and {product}. Answer in {language}.
You are a senior {role} with {count} years of experience.
I want you to act as a {role}. I will provide {common} and you will reply with {common}.
Act as an {role}. Do not break character.
Translate the following sentence from {language} to {language}.
Please answer in {language} and {language} only.
Explain {field} to a five year old.
Give me a course outline on {field}, {field} and {field}.
Summarise {work} in {count} sentences.
Who wrote {work}, and when was it published?
Write a review of {work} in the style of a newspaper.
What is the main theme of {work}?
Explain what {dead} thought about {common}.
What was {dead}'s greatest discovery?
Tell me a story in the style of {dead}.
Compare the philosophy of {dead} and {dead}.
What caused {event}?
Describe the effects of {event} on trade in about {count} words.
When did {event} begin and when did it end?
{heading}
{heading}:
## {heading}
**{heading}**
# {heading}: {title}
{number}. {title}
{heading}: {title}
- {title}
* {title}: {common} and {common}
{title}
Write a blog post titled "{title}".
The article is called "{title}" and has {count} sections.
Create a table with the columns {Common}, {Common} and {Common}.
{Common}, {Common}, {Common} and {Common} are the options.
{CAPS} {CAPS} {CAPS}
NOTE: {CAPS} values are not allowed.
def {code}({code}, {code}):
    return {code}.{code}({number})
class {Camel}({Camel}):
from {code} import {Camel}, {Camel}
import {code}.{code} as {code}
public class {Camel} extends {Camel} implements {Camel} {{
const {code} = new {Camel}({code});
{code} = {Camel}.{code}()
SELECT {code}, {code} FROM {Camel} WHERE {code} = {number};
if ({code} == null) {{ throw new {Camel}Exception("{Common} not found"); }}
<{Camel} {code}={{{code}}} />
npm install {code} && npm run {code}
TypeError: {code}() takes {count} positional arguments but {count} were given
The function `{code}` returns a {Camel} object.
f(x) = {number}x^2 + {number}x + {number}
Solve for x: {number}x + {number} = {number}.
Let A be a matrix and B its inverse; show that AB = I.
The total is {number} dollars for {count} items.
Between {year} and {year} sales grew by {count} percent.
In {year}, about {number} people used it.
Mix {number} g of flour with {count} eggs and bake for {count} minutes at {number} degrees.
The company grew to {number} employees in {count} countries by {year}.
Chapter {count}: {title}
Lesson {count}. {title}
Q{count}. {title}?
Version {count}.{count}.{count} supports {product} and {product}.
{product} {count}.{count} was released in {year}.
Does {product} work with {product}?
Our stack is {product}, {product} and {product}.
I am learning {product} and {field}. Where should I start?
Make a study plan for {field} with {count} lessons a week.
List {count} facts about {event}.
A {language} dictionary has more than {number} words.
{language} grammar is harder than {language} grammar.
Use British English spelling and the Oxford comma.
In the Middle East and in North Africa the climate is dry.
The Eiffel Tower is taller than the Statue of Liberty.
Is the Amazon longer than the Nile?
Assume that Alice sends Bob a message encrypted with Bob's public key.
Player A moves first, then Player B.
User: {title}?
Assistant: Certainly! Here are {count} ideas:
Human: Write a poem about {common}.
Dear Hiring Manager,
Dear Sir or Madam,
To Whom It May Concern,
Dear Customer, your order is on its way.
Best regards,
Yours sincerely,
Hi there, I hope this email finds you well.
I am writing to apply for the position of {role}.
The ideal candidate for {role} has experience with {product} and {field}.
Responsibilities of the {role} include {common} and {common}.
The CEO, the CFO and the Head of {field} meet every Monday.
Please contact Customer Support or visit the Help Center.
Open Settings > {Common} > {Common} and click Save.
Press Ctrl+C, then Alt+Tab, then Enter.
The customer asks the agent for a refund and the agent says yes.
A patient comes to the clinic with a cough and a fever.
A man and his wife buy a house for their children.
The teacher asks the students to write about their parents.
As a parent, what should I teach my kids about money?
Write a dialogue between a king and his daughter.
Imagine that you are a doctor and explain to a patient what {common} means.
Thanks in advance!
Good morning, how are you doing today?
Can you help me with my homework on {field}?
My code does not compile, what did I do wrong?
I want to lose weight, give me a plan for {count} weeks.
I need a name for my new company that sells {common}.
My friend told me that {product} is better than {product}.
I have {count} apples and give {count} away.
Your answer must be at most {count} words. Do not mention {CAPS}.
Return JSON with the keys "{code}", "{code}" and "{code}".
{{"{code}": "{common}", "{code}": {number}, "{code}": true}}
| {Common} | {Common} | {Common} |
What does {acronym} mean, and how is it different from {acronym}?
Set up {acronym} and {acronym} on a new machine.
The {acronym} is computed from the {acronym} and the {common}.
{acronym}, {acronym}, {acronym}
Let f: X -> Y be a map and let x, y be points of X with f(x) = f(y) = z.
Prove that a_n converges to L if |a_n - L| < e for all n > N.
P(A|B) = P(B|A) P(A) / P(B)
F = m a, E = m c^2, V = I R, and g is about 9.8 m/s^2.
A: {common}\nB: {common}\nC: {common}\nD: {common}
Rate the answer from 1 to {count}."""

ACRONYMS = """API SDK CLI GUI CPU GPU RAM ROM SSD HDD USB HDMI LAN WAN VPN DNS DHCP TCP UDP HTTP HTTPS SSH SSL TLS FTP SMTP IMAP DKIM SPF
DMARC JSON XML CSV YAML HTML CSS DOM SQL ORM ACID CRUD REST SOAP MVC OOP TDD CI CD AWS EC2 S3 IAM VPC GCP VM OS UI UX AI ML NLP LLM GPT RNN CNN
GAN SVM PCA KNN MSE RMSE AUC ROC TF IDF BFS DFS LRU FIFO GCD LCM RGB HSL PDF PNG JPEG GIF SVG MP3 MP4 FPS RPG NPC MMO PC TV DVD FM AM PM BC AD
UTC GMT EST PST USD EUR GBP JPY GDP GNP CPI VAT GST IPO ETF ROI ROE EPS PE CFO CEO CTO COO HR PR QA PM SLA KPI OKR RFP NDA FAQ DIY ASAP FYI TBD
DNA RNA PCR MRI CT ECG BMI ADHD PTSD HIV PCOS IVF CBT ICU ER NASA NATO UNESCO WHO FDA FBI CIA IRS EU UN UK US USA IP ID OK NSFW SFW OP AKA ETC""".split()
CLEAN_ELSEWHERE = """Der Vertrag muss von beiden Seiten unterschrieben werden, bevor die Frist endet.
Erkläre den Unterschied zwischen Angebot und Nachfrage anhand eines Beispiels.
Die Regierung hat ein neues Gesetz zum Schutz der Umwelt beschlossen.
Im Sommer ist das Wetter an der Küste meist angenehm.
Welche Programmiersprache eignet sich für Anfänger?
Die Lehrerin erklärt der Klasse die Aufgabe.
Schreibe eine Bewerbung für eine Stelle als Verkäufer.
Der Hund läuft durch den Garten und bellt die Nachbarn an.
Das Unternehmen bietet seinen Kunden einen kostenlosen Versand.
Wie lange kocht man Kartoffeln?
Die Zinsen steigen, weil die Inflation hoch ist.
Übersetze den folgenden Absatz ins Englische.
In der Tabelle stehen Umsatz, Kosten und Gewinn.
Die Software speichert keine Daten auf dem Server.
Eine Datenbank besteht aus Tabellen, Zeilen und Spalten.
Der Zug nach Norden fährt um acht Uhr ab.
Nenne fünf Vorteile und fünf Nachteile von Elektroautos.
Du bist ein hilfreicher Assistent und antwortest kurz und höflich.
Am Montag findet die Sitzung im großen Saal statt.
Die Geschichte handelt von einem König und seinem Sohn.
Le contrat doit être signé par les deux parties avant la date limite.
Explique la différence entre l'offre et la demande.
Le gouvernement a adopté une nouvelle loi sur l'environnement.
Quel langage de programmation convient aux débutants ?
L'entreprise offre la livraison gratuite à ses clients.
Combien de temps faut-il cuire les pommes de terre ?
Traduis le paragraphe suivant en anglais.
Tu es un assistant utile et tu réponds brièvement.
Une base de données contient des tables, des lignes et des colonnes.
Cite cinq avantages et cinq inconvénients des voitures électriques.
Il était une fois un roi qui avait trois fils.
Le train part à huit heures du matin.
El contrato debe ser firmado por ambas partes antes del plazo.
Explica la diferencia entre la oferta y la demanda.
El gobierno aprobó una nueva ley sobre el medio ambiente.
¿Qué lenguaje de programación conviene a los principiantes?
La empresa ofrece envío gratuito a sus clientes.
¿Cuánto tiempo se cuecen las patatas?
Traduce el siguiente párrafo al inglés.
Eres un asistente útil y respondes con brevedad.
Una base de datos tiene tablas, filas y columnas.
Había una vez un rey que tenía tres hijos.
Il contratto deve essere firmato da entrambe le parti.
Spiega la differenza tra domanda e offerta.
Il governo ha approvato una nuova legge sull'ambiente.
Quale linguaggio di programmazione è adatto ai principianti?
Traduci il seguente paragrafo in inglese.
Sei un assistente utile e rispondi in breve.
Un database contiene tabelle, righe e colonne.
C'era una volta un re che aveva tre figli.
O contrato deve ser assinado por ambas as partes.
Explique a diferença entre oferta e procura.
O governo aprovou uma nova lei sobre o meio ambiente.
Traduza o parágrafo seguinte para inglês.
Você é um assistente útil e responde de forma breve.
Uma base de dados tem tabelas, linhas e colunas.
Het contract moet door beide partijen worden ondertekend.
Leg het verschil uit tussen vraag en aanbod.
Vertaal de volgende alinea naar het Engels.
Je bent een behulpzame assistent en antwoordt kort.
Umowa musi zostać podpisana przez obie strony.
Wyjaśnij różnicę między popytem a podażą.
Przetłumacz poniższy akapit na angielski.
Avtalet måste undertecknas av båda parter.
Förklara skillnaden mellan utbud och efterfrågan.
Översätt följande stycke till engelska.
Sözleşme her iki tarafça imzalanmalıdır.
Arz ve talep arasındaki farkı açıkla.
Договор должен быть подписан обеими сторонами.
Объясни разницу между спросом и предложением.
Переведи следующий абзац на английский язык.
Ты полезный помощник и отвечаешь кратко.
合同必须由双方在截止日期前签署。
请解释供给和需求的区别。
你是一个乐于助人的助手，请简短回答。
请列出电动汽车的五个优点和五个缺点。
数据库由表、行和列组成。
请用中文写一篇关于环境保护的文章。
契約書は双方が署名しなければなりません。
需要と供給の違いを説明してください。
あなたは役に立つアシスタントです。短く答えてください。
データベースは表と行と列からなります。
계약서는 양 당사자가 서명해야 합니다.
수요와 공급의 차이를 설명해 주세요.
당신은 유용한 조수이며 짧게 대답합니다.
يجب أن يوقع الطرفان على العقد قبل الموعد النهائي.
اشرح الفرق بين العرض والطلب.
ترجم الفقرة التالية إلى الإنجليزية.
अनुबंध पर दोनों पक्षों के हस्ताक्षर होने चाहिए।
माँग और आपूर्ति में अंतर समझाइए।
Το συμβόλαιο πρέπει να υπογραφεί και από τα δύο μέρη.
החוזה חייב להיחתם על ידי שני הצדדים.
Hợp đồng phải được ký bởi cả hai bên.
Kontrak harus ditandatangani oleh kedua belah pihak.
La collecte et le suivi des matériels sont assurés par le service de maintenance, qui veille à la qualité des données et à la navigabilité des appareils.
Dans cette partie du rapport, nous décrivons la méthode, les résultats obtenus et les limites de l'étude, puis nous proposons quelques pistes.
Les élèves doivent lire le chapitre avant le cours et répondre aux questions à la fin de la leçon.
Pour réussir cette recette, il faut de la farine, des œufs, du beurre, du sucre et un peu de lait tiède.
Die Aufgabe besteht darin, aus den vorhandenen Messwerten eine Kurve zu berechnen und die Abweichung in Prozent anzugeben.
Bei Regen bleibt das Schwimmbad geschlossen, die Turnhalle und die Bibliothek sind wie gewohnt geöffnet.
Für den Teig braucht man Mehl, Eier, Butter, Zucker und eine Prise Salz; die Füllung besteht aus Äpfeln und Rosinen.
Der Bericht beschreibt Verfahren, Ergebnisse und Grenzen der Untersuchung und schlägt weitere Schritte vor.
La recogida y el seguimiento de los materiales corren a cargo del servicio de mantenimiento, que vigila la calidad de los datos.
En esta parte del informe describimos el método, los resultados y los límites del estudio.
Para esta receta se necesitan harina, huevos, mantequilla, azúcar y un poco de leche tibia.
La raccolta e il controllo dei materiali sono affidati al servizio di manutenzione, che verifica la qualità dei dati.
Per questa ricetta servono farina, uova, burro, zucchero e un po' di latte tiepido.
A recolha e o acompanhamento dos materiais ficam a cargo do serviço de manutenção, que verifica a qualidade dos dados.
Para esta receita são precisos farinha, ovos, manteiga, açúcar e um pouco de leite morno.
Het verslag beschrijft de methode, de resultaten en de grenzen van het onderzoek en stelt volgende stappen voor.
Raport opisuje metodę, wyniki i ograniczenia badania oraz proponuje dalsze kroki.
Burada raporun yöntemi, sonuçları ve sınırları anlatılıyor; sonra yeni adımlar öneriliyor.
В этой части отчёта описаны метод, результаты и ограничения исследования, а также следующие шаги.
本报告介绍了方法、结果和研究的局限，并提出了下一步的建议。
この報告書では方法と結果と研究の限界を説明し、次の手順を提案します。
이 보고서는 방법과 결과, 연구의 한계를 설명하고 다음 단계를 제안합니다.
यह रिपोर्ट विधि, परिणाम और अध्ययन की सीमाओं का वर्णन करती है।
يصف هذا التقرير المنهج والنتائج وحدود الدراسة ويقترح الخطوات التالية.""".splitlines()

_SLOT = re.compile(r"\{(\w+)\}|\{\{|\}\}")


def _choices(words: str) -> list[str]:
    return [each.strip() for each in words.replace("\n", "").split(";")]


_CHOICES = {
    "product": _choices(PRODUCTS), "work": _choices(WORKS), "dead": _choices(THE_DEAD), "field": _choices(FIELDS),
    "event": _choices(EVENTS), "language": LANGUAGES, "heading": _choices(HEADINGS), "role": _choices(ROLES), "acronym": ACRONYMS,
}  # fmt: skip
LINES = SENTENCES.splitlines()


def sentence(draw: random.Random, common: list[str]) -> str:
    """A clean sentence; `common` are words in small letters that name nobody."""
    return _SLOT.sub(lambda found: _filled(found, draw, common), draw.choice(LINES))


def asked(draw: random.Random, common: list[str]) -> str:
    """A request or a part of one, just as clean."""
    return _SLOT.sub(lambda found: _filled(found, draw, common), asks.ask(draw).replace("\\n", "\n"))


def _filled(found: re.Match[str], draw: random.Random, common: list[str]) -> str:
    slot = found.group(1)
    if slot is None:
        return found.group()[0]
    if slot in _CHOICES:
        return draw.choice(_CHOICES[slot])
    if slot == "title":
        small = draw.random() < 0.3
        words = [draw.choice(common) for _ in range(draw.randint(2, 7))]
        return " ".join(word.capitalize() if place == 0 or not small or len(word) > 4 else word for place, word in enumerate(words))
    if slot == "code":
        joint = draw.choice(("_", "_", "-", "."))
        words = [draw.choice(common) for _ in range(draw.randint(1, 3))]
        return joint.join(words) if draw.random() < 0.6 else words[0] + "".join(word.capitalize() for word in words[1:])
    if slot == "Camel":
        return "".join(draw.choice(common).capitalize() for _ in range(draw.randint(1, 3)))
    if slot == "verb":
        return asks.verb(draw)
    if slot == "common":
        return draw.choice(common)
    if slot == "Common":
        return draw.choice(common).capitalize()
    if slot == "CAPS":
        return draw.choice(common).upper()
    if slot == "count":
        return str(draw.randint(2, 30))
    if slot == "year":
        return str(draw.randint(1700, 2035))
    return draw.choice((str(draw.randint(1, 999)), f"{draw.randint(1, 999)},{draw.randint(0, 999):03d}", f"{draw.randint(1, 99)}.{draw.randint(0, 99)}"))
