# ruff: noqa: E501, SIM905 (lists of words)
# fmt: off
"""Common given names, family names and places of many languages, and more made from their letters.

Nobody in particular is meant: any pairing with a real person is chance.
"""

from __future__ import annotations

import random
from collections import defaultdict

GIVEN = {
    "en": """James Mary Robert Patricia John Jennifer Michael Linda David Elizabeth William Barbara Richard Susan Joseph
    Jessica Thomas Sarah Charles Karen Christopher Lisa Daniel Nancy Matthew Betty Anthony Sandra Mark Margaret Donald
    Ashley Steven Kimberly Andrew Emily Paul Donna Joshua Michelle Kenneth Carol Kevin Amanda Brian Melissa George Deborah
    Timothy Stephanie Ronald Rebecca Edward Laura Jason Sharon Jeffrey Cynthia Ryan Kathleen Jacob Amy Gary Angela
    Nicholas Shirley Eric Anna Jonathan Brenda Stephen Pamela Larry Emma Justin Nicole Scott Helen Brandon Samantha
    Benjamin Katherine Samuel Christine Gregory Debra Alexander Rachel Patrick Carolyn Frank Janet Raymond Maria Jack
    Olivia Dennis Heather Jerry Catherine Tyler Diane Aaron Julie Jose Victoria Adam Joyce Nathan Lauren Henry Kelly
    Zachary Christina Douglas Ruth Peter Joan Kyle Evelyn Noah Virginia Ethan Judith Jeremy Megan Walter Andrea Keith
    Hannah Austin Jacqueline Roger Martha Terry Gloria Sean Teresa Gerald Ann Carl Sara Dylan Madison Harold Frances
    Jordan Kathryn Jesse Janice Bryan Jean Lawrence Abigail Arthur Alice Gabriel Julia Bruce Judy Logan Sophia Billy
    Grace Joe Denise Alan Amber Juan Doris Elijah Marilyn Willie Danielle Albert Beverly Wayne Isabella Randy Theresa
    Mason Diana Vincent Natalie Liam Brittany Roy Charlotte Bobby Marie Caleb Kayla Bradley Alexis Russell Lori Lucas
    Tom Ben Sam Kate Mike Dave Jim Bob Tim Dan Chris Matt Nick Steve Tony Jen Beth Meg Liz Sue Ellie Chloe Zoe Mia Ava
    Priya Tariq Kwame Chioma Oluwaseun Siobhan Niamh Eoin Rhys Cerys Hamish Isla Freya Poppy Harper Brooklyn Skylar""",
    "de": """Hans Peter Wolfgang Klaus Jürgen Dieter Manfred Uwe Günter Horst Andreas Stefan Michael Thomas Frank Markus
    Matthias Jens Sven Tobias Florian Lukas Jonas Felix Maximilian Paul Leon Finn Elias Sabine Monika Petra Ursula Renate
    Helga Karin Brigitte Ingrid Erika Gisela Martina Andrea Claudia Susanne Birgit Heike Katrin Anja Nicole Stefanie Julia
    Lena Hannah Mia Emma Sophie Johanna Greta Ute Jutta Gabriele Friedrich Karl Heinrich Ernst Otto Rainer Detlef""",
    "fr": """Jean Pierre Michel André Philippe Alain Bernard Jacques Nicolas Laurent Christophe Stéphane Julien Thomas
    Antoine Guillaume Mathieu Sébastien François Louis Hugo Lucas Gabriel Raphaël Marie Nathalie Isabelle Sylvie Catherine
    Françoise Martine Christine Monique Valérie Sandrine Véronique Céline Sophie Julie Camille Chloé Léa Manon Inès Jade
    Élodie Aurélie Émilie Hélène Brigitte Geneviève Thierry Olivier Benoît Yves Gérard René Aurore Margaux Océane""",
    "es": """Antonio José Manuel Francisco Juan David Javier Daniel Carlos Jesús Alejandro Miguel Rafael Pedro Pablo Ángel
    Sergio Fernando Jorge Luis Alberto Álvaro Diego Adrián Raúl Iván María Carmen Ana Isabel Laura Cristina Marta Lucía
    Dolores Pilar Elena Raquel Rosa Mercedes Sara Paula Beatriz Silvia Patricia Andrea Rocío Alba Sofía Valentina Camila
    Ximena Guadalupe Esperanza Santiago Mateo Emiliano Joaquín Ignacio Ramón Gonzalo Inés Noelia""",
    "it": """Giuseppe Giovanni Antonio Mario Luigi Francesco Angelo Vincenzo Pietro Salvatore Carlo Franco Domenico Paolo
    Marco Andrea Alessandro Matteo Lorenzo Davide Riccardo Simone Federico Giulia Maria Anna Francesca Sara Chiara Valentina
    Alessia Silvia Elena Martina Giorgia Federica Elisa Laura Paola Roberta Ilaria Beatrice Caterina Lucia Rosa Giuseppina""",
    "pt": """João José Antônio Francisco Carlos Paulo Pedro Lucas Luiz Marcos Rafael Daniel Marcelo Bruno Eduardo Felipe
    Rodrigo Gustavo Thiago Vinícius Maria Ana Francisca Adriana Juliana Márcia Fernanda Patrícia Aline Sandra Camila Amanda
    Bruna Jéssica Letícia Beatriz Larissa Gabriela Mariana Vitória Inês Matilde Duarte Tiago Gonçalo Henrique""",
    "nl": """Jan Johannes Pieter Cornelis Hendrik Willem Gerrit Jeroen Bas Sander Daan Bram Sem Thijs Lars Niels Joost Maarten
    Anna Maria Johanna Cornelia Wilhelmina Sanne Lotte Femke Anouk Fleur Maud Lieke Esmee Roos Marijke Ineke Saskia Hanneke""",
    "pl": """Jan Andrzej Piotr Krzysztof Stanisław Tomasz Paweł Józef Marcin Marek Michał Grzegorz Jerzy Tadeusz Adam Łukasz
    Zbigniew Ryszard Wojciech Jakub Anna Maria Katarzyna Małgorzata Agnieszka Barbara Ewa Krystyna Elżbieta Magdalena Joanna
    Aleksandra Monika Teresa Zofia Danuta Natalia Karolina Weronika Zuzanna""",
    "sv": """Lars Mikael Anders Johan Erik Per Karl Peter Jan Thomas Fredrik Björn Sven Nils Åke Gustav Oskar Emil Viktor
    Anna Eva Maria Karin Kristina Lena Kerstin Sara Emma Ingrid Malin Jenny Linnea Astrid Elin Ebba Signe Solveig Freja
    Mikko Juhani Matti Antti Päivi Aino Kari Liisa Ole Søren Mette Kirsten Rasmus Magnus Håkon Ingeborg""",
    "tr": """Mehmet Mustafa Ahmet Ali Hüseyin Hasan İbrahim Osman Yusuf Murat Emre Burak Can Kerem Fatma Ayşe Emine Hatice
    Zeynep Elif Meryem Şerife Zehra Sultan Merve Büşra Esra Gamze Derya Ebru""",
    "in": """Rahul Amit Raj Vijay Sanjay Arjun Rohan Aditya Vikram Suresh Ramesh Mahesh Karthik Arun Deepak Anil Sunil
    Rajesh Manoj Ravi Priya Anjali Pooja Neha Sneha Kavita Sunita Lakshmi Divya Shreya Ananya Meera Aishwarya Nisha Rekha
    Harpreet Gurpreet Manpreet Fatima Imran Farhan Zainab Ayesha Bilal Usman Sana""",
    "zh": """Wei Fang Min Jing Li Qiang Lei Jun Yang Yong Jie Juan Tao Chao Ming Xia Ping Gang Xiaoming Xiaoli Jiahao Yuxuan
    Zihan Haoran Yichen Meiling Xiuying Guihua Weijia Rujing Zhihao Ziyi Hui Ying Hua Bo Xin Yan""",
    "ja": """Haruto Yuto Sota Hiroshi Takashi Kenji Kazuki Daisuke Takeshi Makoto Akira Satoshi Yuki Sakura Hina Yui Aoi
    Keiko Yoko Tomoko Naoko Akiko Yumi Emi Haruka Misaki Ryo Shota Kaito Ren""",
    "ar": """Mohammed Ahmed Ali Omar Hassan Hussein Khalid Abdullah Ibrahim Youssef Mustafa Karim Tariq Samir Nabil Faisal
    Fatima Aisha Mariam Layla Noor Amina Zahra Huda Salma Rania Yasmin Hana Dina Samira Abdul Bilal Mahsa Reza Darius""",
    "af": """Kwame Kofi Ama Akosua Chinedu Chioma Ngozi Emeka Oluwaseun Adebayo Folake Thabo Sipho Nomvula Lindiwe Themba
    Amara Zola Tendai Chipo Kamau Wanjiku Otieno Achieng Tesfaye Selam Abebe Fatoumata Mamadou Ousmane Aminata""",
    "vi": """Anh Minh Hung Dung Tuan Quang Thanh Hoang Linh Trang Huong Lan Mai Ngoc Phuong Thao Hanh Hien Duc Khanh""",
    "ko": """Minjun Seojun Jihoon Hyunwoo Sungmin Jiwoo Seoyeon Minji Jiyeon Soojin Eunji Hyejin Youngho Sangwoo Kyung""",
    "ru": """Ivan Dmitri Sergei Alexei Andrei Mikhail Nikolai Vladimir Pavel Igor Oleg Anastasia Ekaterina Olga Natalia
    Tatiana Svetlana Irina Yulia Elena Ksenia Daria Bogdan Taras Oksana Volodymyr Iryna Krzysztof Jovana Milica Zoran""",
}
FAMILY = {
    "en": """Smith Johnson Williams Brown Jones Garcia Miller Davis Rodriguez Martinez Hernandez Lopez Gonzalez Wilson
    Anderson Thomas Taylor Moore Jackson Martin Lee Perez Thompson White Harris Sanchez Clark Ramirez Lewis Robinson Walker
    Young Allen King Wright Scott Torres Nguyen Hill Flores Green Adams Nelson Baker Hall Rivera Campbell Mitchell Carter
    Roberts Gomez Phillips Evans Turner Diaz Parker Cruz Edwards Collins Reyes Stewart Morris Morales Murphy Cook Rogers
    Gutierrez Ortiz Morgan Cooper Peterson Bailey Reed Kelly Howard Ramos Kim Cox Ward Richardson Watson Brooks Chavez Wood
    James Bennett Gray Mendoza Ruiz Hughes Price Alvarez Castillo Sanders Patel Myers Long Ross Foster Jimenez Powell Jenkins
    Perry Russell Sullivan Bell Coleman Butler Henderson Barnes Fisher Vasquez Simmons Graham Murray Ford Hamilton Wallace
    West Cole Hayes Bryant Marshall Owens Harrison Kennedy McDonald Wells Freeman Webb Tucker Burns Crawford Henry Boyd
    Mason Kelley Hicks Dixon Hunt Palmer Holmes Black Stone Shaw Tran Muller Hart Ferguson Rose Cunningham Lane Fox Riley
    O'Brien O'Connor MacLeod Fitzgerald Whitaker Blackwood Ashworth Pemberton Okafor Mensah Singh Kaur Khan Chen Wong""",
    "de": """Müller Schmidt Schneider Fischer Weber Meyer Wagner Becker Schulz Hoffmann Schäfer Koch Bauer Richter Klein Wolf
    Schröder Neumann Schwarz Zimmermann Braun Krüger Hofmann Hartmann Lange Schmitt Werner Krause Meier Lehmann Schmid Schulze
    Maier Köhler Herrmann König Walter Mayer Huber Kaiser Fuchs Peters Lang Scholz Möller Weiß Jung Hahn Vogel Friedrich
    Keller Günther Frank Berger Winkler Roth Beck Lorenz Baumann Franke Albrecht Schuster Simon Ludwig Böhm Winter Kraus""",
    "fr": """Martin Bernard Dubois Thomas Robert Richard Petit Durand Leroy Moreau Simon Laurent Lefebvre Michel Garcia David
    Bertrand Roux Vincent Fournier Morel Girard André Lefèvre Mercier Dupont Lambert Bonnet François Martinez Legrand Garnier
    Faure Rousseau Blanc Guérin Muller Henry Roussel Nicolas Perrin Morin Mathieu Clément Gauthier Dumont Lopez Fontaine
    Chevalier Robin Masson Sanchez Gérard Nguyen Boyer Denis Lemaire Duval Joly Gautier Roger Roche Roy Noël Meyer""",
    "es": """García Rodríguez González Fernández López Martínez Sánchez Pérez Gómez Martín Jiménez Ruiz Hernández Díaz Moreno
    Muñoz Álvarez Romero Alonso Gutiérrez Navarro Torres Domínguez Vázquez Ramos Gil Ramírez Serrano Blanco Molina Morales
    Suárez Ortega Delgado Castro Ortiz Rubio Marín Sanz Núñez Iglesias Medina Garrido Cortés Castillo Santos Lozano Guerrero
    Cano Prieto Méndez Cruz Calvo Gallego Vidal León Márquez Herrera Peña Flores Cabrera Campos Vega Fuentes Carrasco""",
    "it": """Rossi Russo Ferrari Esposito Bianchi Romano Colombo Ricci Marino Greco Bruno Gallo Conti De Luca Mancini Costa
    Giordano Rizzo Lombardi Moretti Barbieri Fontana Santoro Mariani Rinaldi Caruso Ferrara Galli Martini Leone Longo Gentile
    Martinelli Vitale Lombardo Serra Coppola De Santis D'Angelo Marchetti Parisi Villa Conte Ferraro Ferri Fabbri""",
    "pt": """Silva Santos Oliveira Souza Rodrigues Ferreira Alves Pereira Lima Gomes Costa Ribeiro Martins Carvalho Almeida
    Lopes Soares Fernandes Vieira Barbosa Rocha Dias Nascimento Andrade Moreira Nunes Marques Machado Mendes Freitas Cardoso
    Ramos Gonçalves Santana Teixeira Araújo Pinto Moura Cavalcanti""",
    "nl": """Jong Jansen Vries Berg Bakker Dijk Visser Janssen Smit Meijer Boer Mulder Groot Bos Vos Peters Hendriks Leeuwen
    Dekker Brouwer Wit Dijkstra Smits Graaf Meer Linden Kok Jacobs Haan Vermeulen Heuvel Veen Broek Maes Claes Wouters""",
    "pl": """Nowak Kowalski Wiśniewski Dąbrowski Lewandowski Wójcik Kamiński Kowalczyk Zieliński Szymański Woźniak Kozłowski
    Jankowski Wojciechowski Kwiatkowski Kaczmarek Mazur Krawczyk Piotrowski Grabowski Nowakowski Pawłowski Michalski""",
    "sv": """Andersson Johansson Karlsson Nilsson Eriksson Larsson Olsson Persson Svensson Gustafsson Pettersson Lindberg
    Lindström Lindqvist Bergström Hansen Olsen Jensen Nielsen Pedersen Korhonen Virtanen Mäkinen Nieminen Hämäläinen Berg""",
    "tr": "Yılmaz Kaya Demir Çelik Şahin Yıldız Yıldırım Öztürk Aydın Özdemir Arslan Doğan Kılıç Aslan Çetin Kara Koç",
    "in": """Sharma Verma Gupta Singh Kumar Patel Shah Mehta Reddy Rao Nair Iyer Menon Pillai Das Ghosh Banerjee Mukherjee
    Chatterjee Bose Joshi Desai Kulkarni Patil Chopra Kapoor Malhotra Khanna Agarwal Jain Mishra Pandey Tiwari Yadav Khan
    Ahmed Hussain Siddiqui Krishnan Subramanian Venkatesh Natarajan""",
    "zh": "Wang Li Zhang Liu Chen Yang Huang Zhao Wu Zhou Xu Sun Ma Zhu Hu Guo He Lin Gao Luo Zheng Liang Xie Tang Song Deng",
    "ja": """Sato Suzuki Takahashi Tanaka Watanabe Ito Yamamoto Nakamura Kobayashi Kato Yoshida Yamada Sasaki Yamaguchi
    Matsumoto Inoue Kimura Hayashi Shimizu Saito Mori Abe Ikeda Hashimoto Ishikawa Ogawa Okada Hasegawa Fujita""",
    "ar": """Hassan Ali Hussein Ahmed Khan Rahman Abbas Saleh Mahmoud Nasser Haddad Khoury Mansour Farah Hamdan Qureshi
    Al-Sayed El-Amin Bakr Aziz Hakimi Karimi Hosseini Ahmadi Rezaei Tehrani""",
    "af": "Okafor Adeyemi Mensah Owusu Nkosi Dlamini Mokoena Mwangi Otieno Diallo Traore Keita Bekele Haile Banda Phiri Moyo",
    "vi": "Nguyen Tran Le Pham Hoang Huynh Phan Vu Vo Dang Bui Do Ho Ngo Duong Ly",
    "ko": "Kim Lee Park Choi Jung Kang Cho Yoon Jang Lim Han Oh Seo Shin Kwon Hwang Ahn Song Yoo Hong",
    "ru": """Ivanov Smirnov Kuznetsov Popov Sokolov Lebedev Kozlov Novikov Morozov Petrov Volkov Solovyov Vasiliev Zaitsev
    Pavlov Ivanova Petrova Sidorova Shevchenko Kovalenko Bondarenko Tkachenko Petrović Jovanović Horvat Novák Dvořák Nagy""",
}
NATIVE_GIVEN = {
    "ru": "Иван Дмитрий Сергей Алексей Андрей Михаил Николай Владимир Павел Анастасия Екатерина Ольга Наталья Татьяна Светлана",
    "zh": "伟 芳 娜 敏 静 丽 强 磊 军 洋 勇 艳 杰 涛 明 超 秀英 霞 平 刚 桂英 建国 志强 晓明 雨轩 子涵 浩然 佳琪 梓萱",
    "ja": "太郎 花子 翔太 健太 大輔 美咲 陽子 裕子 恵子 直樹 拓也 愛 結衣 葵 蓮 陽翔 さくら 一郎 次郎 明 誠",
    "ko": "민준 서준 지훈 현우 성민 지우 서연 민지 지연 수진 은지 혜진 영호 상우",
    "ar": "محمد أحمد علي عمر حسن خالد عبدالله يوسف فاطمة عائشة مريم ليلى نور أمينة سارة زينب",
    "hi": "राहुल अमित राज विजय संजय अर्जुन रोहन प्रिया अंजलि पूजा नेहा कविता सुनीता लक्ष्मी दिव्या",
    "el": "Γιώργος Δημήτρης Κώστας Νίκος Μαρία Ελένη Κατερίνα Σοφία Άννα Παναγιώτης",
    "he": "דוד משה יוסף אברהם שרה רחל מרים דניאל נועה תמר",
}
NATIVE_FAMILY = {
    "ru": "Иванов Смирнов Кузнецов Попов Соколов Лебедев Козлов Новиков Морозов Петров Волков Иванова Петрова Сидорова",
    "zh": "王 李 张 刘 陈 杨 黄 赵 吴 周 徐 孙 马 朱 胡 郭 何 林 高 罗",
    "ja": "佐藤 鈴木 高橋 田中 渡辺 伊藤 山本 中村 小林 加藤 吉田 山田 佐々木 山口 松本 井上",
    "ko": "김 이 박 최 정 강 조 윤 장 임 한 오 서 신 권",
    "ar": "حسن علي حسين العلي الحسن منصور الخطيب النجار المصري الشامي السعدي",
    "hi": "शर्मा वर्मा गुप्ता सिंह कुमार पटेल शाह मेहता रेड्डी राव यादव मिश्रा",
    "el": "Παπαδόπουλος Γεωργίου Δημητρίου Νικολάου Παπαδάκη Οικονόμου",
    "he": "כהן לוי מזרחי פרץ ביטון אברהם פרידמן",
}
CITIES = """London Paris Berlin Madrid Rome Vienna Munich Hamburg Cologne Frankfurt Lyon Marseille Toulouse Nice Bordeaux
Barcelona Valencia Seville Milan Naples Turin Lisbon Porto Amsterdam Rotterdam Brussels Antwerp Zurich Geneva Bern Prague
Warsaw Krakow Budapest Bucharest Sofia Athens Istanbul Ankara Moscow Kyiv Oslo Stockholm Copenhagen Helsinki Dublin Cork
Edinburgh Glasgow Manchester Liverpool Birmingham Leeds Bristol Sheffield Cardiff Belfast Oxford Cambridge Brighton
Chicago Houston Phoenix Philadelphia Dallas Austin Seattle Denver Boston Portland Atlanta Miami Detroit Minneapolis Tampa
Nashville Memphis Sacramento Oakland Springfield Greenville Burlington Madison Clinton Fairview Salem Georgetown Arlington
Toronto Montreal Vancouver Calgary Ottawa Sydney Melbourne Brisbane Perth Auckland Wellington Mumbai Delhi Bangalore
Chennai Kolkata Hyderabad Pune Noida Karachi Lahore Dhaka Colombo Kathmandu Singapore Jakarta Manila Bangkok Hanoi Tokyo
Osaka Kyoto Seoul Busan Beijing Shanghai Shenzhen Guangzhou Taipei Cairo Lagos Nairobi Accra Johannesburg Casablanca Tunis
Dubai Riyadh Doha Tehran Baghdad Amman Beirut Bogotá Lima Santiago Caracas Quito Recife Curitiba Rosario Guadalajara
Monterrey Tijuana Havana Kingston Gothenburg Malmö Bergen Aarhus Tampere Turku Gdańsk Poznań Brno Graz Linz Salzburg Basel
Lausanne Nantes Lille Strasbourg Rennes Grenoble Bilbao Málaga Zaragoza Bologna Florence Venice Palermo Genoa Leipzig
Dresden Stuttgart Düsseldorf Bremen Hannover Nuremberg Freiburg Utrecht Eindhoven Ghent Bruges Luxembourg Tallinn Riga
Vilnius Zagreb Belgrade Sarajevo Ljubljana Skopje Tirana Reykjavik Westminster Brooklyn Queens Manhattan Hollywood""".split()
TWO_WORD_CITIES = (
    "New York;Los Angeles;San Francisco;San Diego;San Jose;Las Vegas;Fort Worth;New Orleans;Kansas City;Salt Lake City;"
    "Buenos Aires;Rio de Janeiro;São Paulo;Mexico City;Cape Town;Hong Kong;Kuala Lumpur;Ho Chi Minh City;Abu Dhabi;Tel Aviv;"
    "Den Haag;Frankfurt am Main;Saint Petersburg;Santa Fe;Long Beach;Palo Alto;King county;Orange County;St. Louis"
).split(";")
COUNTRIES = """France Germany Spain Italy Portugal Austria Switzerland Belgium Netherlands Denmark Norway Sweden Finland
Poland Hungary Romania Bulgaria Greece Turkey Russia Ukraine Ireland Scotland Wales England Canada Mexico Brazil Argentina
Chile Peru Colombia Venezuela Cuba Jamaica Egypt Morocco Algeria Tunisia Nigeria Ghana Kenya Ethiopia Uganda Tanzania
Sudan Zimbabwe India Pakistan Bangladesh Nepal China Japan Korea Vietnam Thailand Malaysia Indonesia Philippines Australia
Israel Jordan Lebanon Syria Iraq Iran Afghanistan Kuwait Qatar Yemen Georgia Armenia Texas California Florida Ohio Oregon
Nevada Arizona Colorado Michigan Virginia Montana Alaska Hawaii Maine Utah Kansas Iowa Bavaria Saxony Provence Brittany
Catalonia Andalusia Tuscany Sicily Ontario Quebec Queensland Gujarat Kerala Punjab Bihar Uruguay Paraguay Bolivia Ecuador
Gibraltar Malta Cyprus Iceland Estonia Latvia Lithuania Slovenia Croatia Serbia Bosnia Albania Moldova Belarus""".split()
NATIVE_CITIES = {
    "ru": "Москва Санкт-Петербург Казань Новосибирск Екатеринбург Самара Омск Киев Минск".split(),
    "zh": "北京 上海 广州 深圳 杭州 成都 武汉 南京 西安 重庆 天津 苏州".split(),
    "ja": "東京 大阪 京都 横浜 名古屋 札幌 福岡 神戸 仙台 広島".split(),
    "ko": "서울 부산 인천 대구 대전 광주 수원".split(),
    "ar": "القاهرة الرياض دبي بغداد بيروت عمان الدوحة جدة".split(),
    "hi": "दिल्ली मुंबई कोलकाता चेन्नई बेंगलुरु पुणे जयपुर लखनऊ".split(),
}
PARTICLES = ("van", "van der", "van den", "de", "de la", "von", "da", "dos", "di", "bin", "al-", "Mc", "Mac", "O'", "St.")


class Letters:
    """Makes words like those it was given: what follows two letters."""

    def __init__(self, words: list[str]) -> None:
        self._after: dict[str, list[str]] = defaultdict(list)
        for word in words:
            padded = f"^^{word.lower()}$"
            for place in range(2, len(padded)):
                self._after[padded[place - 2 : place]].append(padded[place])

    def word(self, draw: random.Random) -> str:
        for _ in range(50):
            made = "^^"
            while made[-1] != "$" and len(made) < 14:
                made += draw.choice(self._after[made[-2:]])
            if 3 <= len(word := made[2:].rstrip("$")) <= 11:
                return word.capitalize()
        return "Ada"


LANGUAGES = tuple(GIVEN)
_GIVEN = {language: names.split() for language, names in GIVEN.items()}
_FAMILY = {language: names.split() for language, names in FAMILY.items()}
_MADE = {
    language: (Letters(_GIVEN[language]), Letters(_FAMILY[language])) for language in LANGUAGES
}


def given(draw: random.Random, language: str | None = None) -> str:
    language = language if language in _GIVEN else draw.choice(LANGUAGES if draw.random() < 0.6 else ("en",))
    return _MADE[language][0].word(draw) if draw.random() < 0.35 else draw.choice(_GIVEN[language])


def family(draw: random.Random, language: str | None = None) -> str:
    language = language if language in _FAMILY else draw.choice(LANGUAGES if draw.random() < 0.6 else ("en",))
    name = _MADE[language][1].word(draw) if draw.random() < 0.4 else draw.choice(_FAMILY[language])
    if draw.random() < 0.06:
        particle = draw.choice(PARTICLES)
        name = particle + ("" if particle[-1] in "-'c" else " ") + name
    if draw.random() < 0.03:
        name += "-" + draw.choice(_FAMILY[language])
    return name


def place(draw: random.Random) -> str:
    chance = draw.random()
    if chance < 0.5:
        return draw.choice(CITIES)
    if chance < 0.62:
        return draw.choice(TWO_WORD_CITIES)
    if chance < 0.85:
        return draw.choice(COUNTRIES)
    made = Letters_of_places.word(draw)
    return made + draw.choice(("", "", "ville", "ton", "burg", "ford", " Heights", " Valley", "dorf", "ham"))


Letters_of_places = Letters(CITIES + COUNTRIES)
KNOWN = {
    name.lower()
    for names in (*_GIVEN.values(), *_FAMILY.values(), CITIES, COUNTRIES, *(each.split() for each in TWO_WORD_CITIES))
    for name in names
}
