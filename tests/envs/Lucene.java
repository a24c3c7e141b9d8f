// Terms and rankings of Anserini itself: java -cp anserini-0.14.3-fatjar.jar Lucene.java QUESTIONS ANSWERS FOLDER
// QUESTIONS holds {"texts": [...], "documents": [{"id", "contents"}], "queries": [...]}; FOLDER is for the index.
import com.fasterxml.jackson.databind.ObjectMapper;
import io.anserini.analysis.AnalyzerUtils;
import io.anserini.analysis.DefaultEnglishAnalyzer;
import io.anserini.index.IndexCollection;
import io.anserini.search.SimpleSearcher;
import java.io.File;
import java.util.*;

public class Lucene {
  public static void main(String[] args) throws Exception {
    ObjectMapper json = new ObjectMapper();
    Map<String, List<?>> questions = json.readValue(new File(args[0]), Map.class);
    List<Object> terms = new ArrayList<>(), hits = new ArrayList<>();
    for (Object text : questions.get("texts"))
      terms.add(AnalyzerUtils.analyze(DefaultEnglishAnalyzer.newDefaultInstance(), (String) text));
    File documents = new File(args[2], "documents");
    documents.mkdirs();
    json.writeValue(new File(documents, "all.json"), questions.get("documents"));
    String index = args[2] + "/index";
    IndexCollection.main(new String[] {
        "-collection", "JsonCollection", "-input", documents.getPath(), "-index", index, "-generator",
        "DefaultLuceneDocumentGenerator", "-threads", "1", "-storePositions", "-storeDocvectors", "-storeRaw"});
    SimpleSearcher searcher = new SimpleSearcher(index);
    for (Object query : questions.get("queries")) {
      List<Object> found = new ArrayList<>();
      for (SimpleSearcher.Result hit : searcher.search((String) query, 50)) found.add(List.of(hit.docid, hit.score));
      hits.add(found);
    }
    json.writeValue(new File(args[1]), Map.of("terms", terms, "hits", hits));
  }
}
